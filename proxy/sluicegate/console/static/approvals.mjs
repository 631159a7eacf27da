/** Approvals: what waits for a person, one card, and the decision. The server says what is shown; the page lays it out. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import { signal } from "./vendor/signals.mjs";
import { Resource, post, session, withStepUp } from "./net.mjs";
import { now } from "./live.mjs";
import {
  Countdown, Fragment, Lines, Peer, Region, Time, ToolClass, Verdict, ago, html, plural, size, span, spoken, useLive,
} from "./ui.mjs";
import { go, query, route } from "./router.mjs";
import { Grants } from "./grants.mjs";

/** @typedef {any} Approval */

/** What waits for this person's word. */
export const waiting = new Resource("/api/v1/approvals?state=pending&for=approver&limit=200", "approvals");
const asked = new Resource("/api/v1/approvals?state=pending&for=requester&limit=200", "approvals");
const decided = new Resource("/api/v1/approvals?state=decided&limit=200", "approvals");
const PINNED = { "tools/call": "tool", "prompts/get": "prompt", "resources/read": "template" };
const WAITING = ["pending", "partially_approved"];
const LIVE_AFTER = 700; // a key that is held down must not confirm what it asked for, nor a second click on Back decide
const SHOWN = 40; // lines; more are shown on request, and have to be before a yes

/** As it is said aloud. */
export const nameOf = (/** @type {Approval} */ one) => `${one.server} ${one.tool}`;
const isMine = (/** @type {Approval} */ one) => one.principal === session.value?.principal;
export const yours = () => waiting.data.value?.approvals ?? [];

/** @type {Record<string, [string, Resource]>} */
const TABS = { yours: ["For you", waiting], asked: ["Asked by you", asked], decided: ["Decided", decided] };

export function Approvals() {
  const wanted = query.value.get("tab") ?? "", tab = Object.hasOwn(TABS, wanted) ? wanted : "yours", resource = TABS[tab][1];
  useLive(waiting);
  useLive(asked);
  useLive(resource);
  const chosen = route.value.item, isGrants = wanted === "grants";
  const rows = (/** @type {any} */ data) => [...data.approvals].sort(tab === "decided" ? newest : soonest);
  const count = (/** @type {string} */ name) => TABS[name][1].data.value?.total ?? 0;
  return html`<div class=${`split ${chosen ? "has-item" : ""}`}>
    <section class="list" aria-label="Approvals">
      <header class="head"><h1>Approvals</h1><${Notify} /></header>
      <nav class="tabs" aria-label="Which approvals">${Object.entries(TABS).map(([name, [title]]) => html`
        <a href=${`/console/approvals?tab=${name}`} aria-current=${name === tab && !isGrants ? "page" : undefined}>${title}${
          name !== "decided" && count(name) > 0 && html` <b class="count">${count(name)}</b>`}</a>`)}<a href="/console/approvals?tab=grants" aria-current=${isGrants ? "page" : undefined}>Grants</a></nav>
      ${isGrants ? html`<${Grants} />` : html`<${Region} resource=${resource} title="Approvals" isEmpty=${(/** @type {any} */ data) => !rows(data).length} empty=${html`<${NothingWaits} tab=${tab} />`}>
        ${(/** @type {any} */ data) => html`<ul class="rows" data-rows>${rows(data).map((/** @type {Approval} */ one) => html`
          <${Row} key=${one.id} one=${one} tab=${tab} isChosen=${one.id === chosen} />`)}</ul>`}
      <//>
      <${Older} resource=${resource} />`}
    </section>
    <section class="detail" aria-label="One approval">${chosen ? html`<${Card} key=${chosen} id=${chosen} />`
      : !isGrants && html`<div class="empty wide"><h2>Choose an approval</h2><p>Its arguments, who asked and which rule asks for a person are shown here.</p></div>`}</section>
  </div>`;
}

function Older({ resource }) {
  const data = resource.data.value;
  return data?.next && html`<p class="note">These are the newest ${data.approvals.length} of ${data.total}.
    ${" "}<button class="link" onClick=${() => resource.more()}>Show older ones</button></p>`;
}

const soonest = (/** @type {Approval} */ a, /** @type {Approval} */ b) => a.expires_at.localeCompare(b.expires_at);
const newest = (/** @type {Approval} */ a, /** @type {Approval} */ b) =>
  (b.ended_at ?? b.created_at).localeCompare(a.ended_at ?? a.created_at);

function NothingWaits({ tab }) {
  if (tab === "decided") return html`<h3>Nothing decided yet</h3><p>Approvals stay listed here after they end.</p>`;
  if (tab === "asked") return html`<h3>You wait for nobody</h3><p>Calls of your own that need somebody's approval are listed here.</p>`;
  return html`<h3>Nothing needs you</h3><p>When a call needs your approval it appears here at once. A policy row with the verdict
    ${" "}<code>ask</code> asks for one: see <code>sluice explain</code>.</p>`;
}

function Row({ one, tab, isChosen }) {
  return html`<li><a class="row" href=${`/console/approvals/${one.id}?tab=${tab}`} aria-current=${isChosen ? "true" : undefined}>
    <span class="row-top"><span class="name"><${Peer} text=${one.server} /><span class="slash">/</span><b><${Peer} text=${one.tool} /></b></span>
      ${WAITING.includes(one.state) ? html`<${Countdown} id=${one.id} until=${one.expires_at} label=${nameOf(one)} />` : html`<span class="dim">${ago(one.ended_at ?? one.created_at)}</span>`}</span>
    <span class="row-sub"><${ToolClass} word=${one.class} /><span>for <${Peer} text=${one.principal} /></span><span><${Peer} text=${one.profile} /></span>
      ${WAITING.includes(one.state) ? one.quorum > 1 && html`<span>${one.votes.length} of ${one.quorum} votes</span>` : html`<${Verdict} word=${one.state} />`}</span>
  </a></li>`;
}

/** @param {{id: string}} props */
function Card({ id }) {
  const resource = useMemo(() => new Resource(`/api/v1/approvals/${encodeURIComponent(id)}`), [id]);
  useLive(resource);
  return html`<a class="back" href="/console/approvals">← All approvals</a>
    <${Region} resource=${resource} title="This approval">${(/** @type {Approval} */ one) => html`<${Whole} one=${one} resource=${resource} />`}<//>`;
}

/** What a person compares by eye before and after: if it differs, it is another matter. */
const shownOf = (/** @type {Approval} */ one) => JSON.stringify([one.digest, one.arguments_lines, one.definition]);

function Whole({ one, resource }) {
  const seen = useRef(one), [isChanged, setChanged] = useState(false);
  const [revealed, setRevealed] = useState(/** @type {string[] | null} */ (null));
  if (shownOf(seen.current) !== shownOf(one)) {
    seen.current = one;
    if (!isChanged) setChanged(true);
  }
  const [isOpen, setOpen] = useState(false);
  const lines = revealed ?? one.arguments_lines;
  const needsOpening = (lines.length > SHOWN || one.arguments_cut) && !isOpen;
  const say = (/** @type {string} */ problem) => { spoken.value = problem; };
  const reveal = () => withStepUp({ name: one.tool, why: "what follows shows secrets" }, async () => {
    setRevealed((await post(`/api/v1/approvals/${one.id}/reveal`)).arguments_lines);
  }, say).catch((problem) => say(problem.message));
  const isWaiting = WAITING.includes(one.state);
  const compared = one.compared_with_last_approved;
  return html`<article class="card" aria-labelledby="what">
    <header class="card-head">
      <div><h2 id="what"><span class="dim"><${Peer} text=${one.server} /> / </span><${Peer} text=${one.tool} /></h2>
        <p class="meta"><${ToolClass} word=${one.class} /><${Verdict} word=${one.state} /><span class="dim">${one.id}</span></p></div>
      ${isWaiting && html`<${Countdown} id=${one.id} until=${one.expires_at} label=${nameOf(one)} />`}
    </header>
    ${isChanged && html`<p class="note bad" role="alert">What this approval is about changed while you looked at it. Read it again.</p>`}
    <dl class="facts">
      <dt>Who</dt><dd><${Peer} text=${one.principal} class="strong" />${one.owner && html`, owner <${Peer} text=${one.owner} />`}
        ${one.client_claims_to_be && html`<span class="dim">; the client says it is “<${Peer} text=${one.client_claims_to_be} />”</span>`}</dd>
      ${Object.keys(one.aims_at ?? {}).length > 0 && html`<dt>Aims at</dt><dd class="aims">${Object.entries(one.aims_at).map(([name, value]) => html`
        <span class="aim"><${Peer} text=${name} class="dim" /> <${Peer} text=${value} class="strong" /></span>`)}</dd>`}
    </dl>
    <section class="block"><h3>Arguments
        <span class="badges"><span class="badge">${one.arguments_erased ? "erased" : size(one.arguments_size)}</span>
        ${one.hidden_characters > 0 && html`<span class="badge bad">${plural(one.hidden_characters, "hidden character")}, shown as ⟨U+…⟩</span>`}
        ${one.arguments_cut && html`<span class="badge bad">cut: only a part was kept (<${Peer} text=${one.arguments_digest} />)</span>`}
        ${revealed && html`<span class="badge wait">unmasked</span>`}</span>
        ${!revealed && !one.arguments_erased && isWaiting && html`<button class="link" onClick=${reveal}>Reveal masked values</button>`}</h3>
      ${one.arguments_erased ? html`<p class="dim">The arguments were erased after this approval ended.</p>`
        : lines.length === 0 ? html`<p class="dim">No arguments.</p>`
        : html`<${Lines} lines=${isOpen ? lines : lines.slice(0, SHOWN)} label="Arguments" />
          ${needsOpening && html`<button class="opens" onClick=${() => setOpen(true)}>${
            one.arguments_cut ? "I saw that a part is missing" : `Show all ${lines.length} lines`} – needed to approve</button>`}`}
      ${compared?.length > 0 && html`<details open><summary>Compared with the last approved call</summary>
        <${Lines} lines=${compared} marks label="Difference to the last approved call" /></details>`}
    </section>
    ${one.reason?.text && html`<section class="block quote"><h3>Reason <span class="author">written by the agent</span></h3><p><${Peer} text=${one.reason.text} /></p></section>`}
    ${one.description?.text && html`<details class="block quote"><summary>Description <span class="author">written by the server</span></summary><p><${Peer} text=${one.description.text} /></p></details>`}
    <dl class="facts">
      <dt>Asked by</dt><dd><${Peer} text=${one.asked_by_row?.rule} class="strong" /> <code><${Peer} text=${one.asked_by_row?.row} /></code></dd>
      <dt>Needs</dt><dd>${one.tier === "self" ? "confirmation by whoever asked" : html`${plural(one.quorum, "vote")} of <${Peer} text=${(one.approvers ?? []).join(" or ")} />`}
        <span class="dim">, profile <${Peer} text=${one.profile} /></span></dd>
      <dt>Definition</dt><dd><${Peer} text=${one.definition?.review?.replaceAll("_", " ") || "not pinned"} />${one.definition?.by && html` by <${Peer} text=${one.definition.by} class="strong" />,
        ${" "}<time datetime=${one.definition.at} title=${one.definition.at}>${ago(one.definition.at)}</time>: <a href=${`/console/catalog?of=${encodeURIComponent(`pin ${one.server} ${one.definition.era} ${PINNED[one.method]} ${one.tool}`)}`}>its pin</a>`}</dd>
      ${(isWaiting || one.votes.length > 0) && html`<dt>Votes</dt><dd>${one.votes.length === 0 ? html`<span class="dim">none yet</span>` : one.votes.map((/** @type {any} */ vote) => html`
        <div><${Peer} text=${vote.principal} class="strong" /> <span class="dim"><${Time} at=${vote.at} /> by ${vote.channel}</span>${
          vote.comment && html` “<${Peer} text=${vote.comment} />”`}</div>`)}</dd>`}
      ${one.trace && html`<dt>Trace</dt><dd><code><${Peer} text=${one.trace} /></code></dd>`}
    </dl>
    ${one.last_calls?.length > 0 && html`<details class="block"><summary><span>Last ${one.last_calls.length} calls of <${Peer} text=${one.principal} /></span></summary>
      <ul class="sentences">${one.last_calls.map((/** @type {any} */ call) => html`<li><span class="dim"><${Time} at=${call.time} /></span> <${Peer}
        text=${[call.server, call.own].filter(Boolean).join(" / ") || call.method} /> <${Peer} text=${call.outcome} class="strong" />${call.reason && html` <span class="dim"><${Peer} text=${call.reason} /></span>`}</li>`)}</ul></details>`}
    <${Decide} one=${one} needsOpening=${needsOpening} resource=${resource} />
  </article>`;
}

/** Focus that goes with what had it goes to this box instead: nobody has to find the place again. */
function useHeldFocus() {
  const box = useRef(/** @type {any} */ (null)), isHeld = box.current?.contains(document.activeElement);
  useLayoutEffect(() => { if (isHeld && document.activeElement === document.body) box.current?.focus(); });
  return box;
}

function Ended({ one, box, problem }) {
  const by = one.decided_by || one.votes.map((/** @type {any} */ vote) => vote.principal).join(", ");
  return html`<footer ref=${box} tabindex="-1" class="decide over" role="status">${problem}<${Verdict} word=${one.state} />
    ${by && html`<span>by <${Peer} text=${by} class="strong" /></span>`}
    ${one.ended_at && html`<span class="dim">${ago(one.ended_at)}</span>`}
    ${one.comment && html`<span>“<${Peer} text=${one.comment} />”</span>`}
    ${one.state === "approved" && html`<span class="dim">The call runs when the agent repeats it.</span>`}
    ${one.state === "consumed" && html`<span class="dim">The call was sent to the server.</span>`}</footer>`;
}

const SCOPES = { once: "Approve once", session: "Approve for this session", "15m": "Approve for 15 min" };

function Decide({ one, needsOpening, resource }) {
  const box = useHeldFocus();
  const [asked, setAsked] = useState(/** @type {null | string} */ (null));
  const [isArmed, setArmed] = useState(false), [problem, setProblem] = useState(""), [isSending, setSending] = useState(false);
  const confirm = useRef(/** @type {any} */ (null)), comment = useRef(/** @type {any} */ (null)), backAt = useRef(-LIVE_AFTER);
  useLayoutEffect(() => { // before the paint: a key pressed on Back must not land on Confirm
    if (asked === null) return undefined;
    confirm.current?.focus();
    const timer = setTimeout(() => setArmed(true), LIVE_AFTER);
    return () => { clearTimeout(timer); setArmed(false); };
  }, [asked]);
  useEffect(() => setAsked(null), [one.digest]);
  const said = problem && html`<p class="note bad" role="alert"><${Peer} text=${problem} /></p>`;
  if (!WAITING.includes(one.state)) return Ended({ one, box, problem: said });
  if (one.objection) return html`<footer ref=${box} tabindex="-1" class="decide over"><p class="dim">You cannot decide this one: <${Peer} text=${one.objection} />.</p>
    ${isMine(one) && html`<button onClick=${async () => { await post(`/api/v1/approvals/${one.id}/cancel`); void resource.load(); }}>Withdraw</button>`}</footer>`;
  if (one.has_voted) return html`<footer ref=${box} tabindex="-1" class="decide over">${said}<${Verdict} word="waiting" /><span>You voted. ${one.votes.length} of ${one.quorum} votes are there.</span></footer>`;
  const decide = async (/** @type {string} */ decision, scope = "once") => {
    if (isSending) return;
    setSending(true);
    setProblem("");
    try {
      const body = { decision, comment: comment.current?.value ?? "", ...(decision === "approve" ? { scope, seen_digest: one.digest } : {}) };
      const told = await post(`/api/v1/approvals/${one.id}/decisions`, body);
      spoken.value = `${one.tool}: ${told.state}`;
    } catch (failure) {
      const { message, status } = /** @type {import("./net.mjs").Failure} */ (failure);
      setProblem(status === 409 ? `Your decision was not taken: ${message}.` : message);
    }
    setSending(false);
    setAsked(null);
    void resource.load();
    void waiting.load();
  };
  const isMeant = (/** @type {Event} */ event) => event.timeStamp - backAt.current > LIVE_AFTER;
  const aims = Object.entries(one.aims_at ?? {});
  const scopes = ["once", ...(one.remember ?? []).filter((/** @type {string} */ scope) => scope !== "once")];
  return html`<footer ref=${box} tabindex="-1" class="decide" data-decide>${said}
    ${asked !== null && aims.length > 0 && html`<p class="note" id="aims">It aims at ${aims.map(([name, value], index) => html`${index > 0 && ", "}<${Peer} text=${name} class="dim" /> <${Peer} text=${value} class="strong" />`)}</p>`}
    <label class="comment"><span class="hidden">Comment, the agent reads it</span>
      <input ref=${comment} maxlength="500" placeholder=${one.require_reason ? "Reason (required; the agent reads it)" : "Comment (the agent reads it)"} /></label>
    <div class="buttons">${asked === null ? html`<${Fragment}>
      <button key="deny" class="deny" data-key="d" aria-disabled=${isSending} onClick=${(/** @type {Event} */ event) => isMeant(event) && decide("deny")}>Deny</button>
      ${scopes.map((scope) => html`<button class=${scope === "once" ? "approve" : "approve quiet"} data-key=${scope === "once" ? "a" : undefined}
        disabled=${needsOpening} aria-disabled=${isSending} title=${needsOpening ? "Open the arguments first" : ""} onClick=${(/** @type {Event} */ event) => isMeant(event) && setAsked(scope)}>${SCOPES[scope] ?? scope}</button>`)}<//>`
    : html`<${Fragment}><button key="back" onClick=${(/** @type {Event} */ event) => { backAt.current = event.timeStamp; setAsked(null); }}>Back</button>
      <button ref=${confirm} class="approve confirm" aria-describedby=${aims.length > 0 ? "aims" : undefined} aria-disabled=${!isArmed || isSending} onClick=${() => isArmed && decide("approve", asked)}>
        Confirm: <${Peer} text=${one.tool} /> on <${Peer} text=${one.server} />${asked !== "once" && html`, ${asked === "15m" ? "for 15 min" : "this session"}`}</button><//>`}</div>
  </footer>`;
}

/* ---------------------------------------------------------------- notifications */

const CHANNEL = new BroadcastChannel("sluice.notified");
const notified = new Set(/** @type {string[]} */ ([]));
CHANNEL.addEventListener("message", (event) => notified.add(event.data));
const permission = signal("Notification" in window ? Notification.permission : "denied");
let isFirst = true;

/** Says once, in one tab, that somebody is waited for: the tool and who asked, never arguments. */
waiting.data.subscribe((data) => {
  if (data === null) return;
  const fresh = yours().filter((/** @type {Approval} */ one) => !notified.has(one.id));
  for (const one of fresh) {
    notified.add(one.id);
    if (isFirst) continue;
    spoken.value = `Approval needed: ${one.server} ${one.tool} for ${one.principal}`;
    if (permission.value === "granted" && document.hidden) void navigator.locks.request(`sluice.notified ${one.id}`, { ifAvailable: true }, (lock) => lock && notify(one));
  }
  isFirst = false;
});

/** Tabs that hear of it at the same moment find the lock taken. @param {Approval} one */
function notify(one) {
  CHANNEL.postMessage(one.id);
  const shown = new Notification("Sluice: approval needed", { body: `${one.server}/${one.tool} for ${one.principal}`, tag: one.id });
  shown.onclick = () => { window.focus(); go(`/console/approvals/${one.id}`); };
  return new Promise((done) => setTimeout(done, 5_000)); // by then the other tabs have heard it
}

function Notify() {
  if (permission.value !== "default") return null;
  const ask = async () => { permission.value = await Notification.requestPermission(); };
  return html`<button class="quiet" onClick=${ask}>Notify me</button>`;
}

/** The oldest that waits for this person, as a time. */
export const oldest = () => {
  const first = Math.min(...yours().map((/** @type {Approval} */ one) => Date.parse(one.created_at)));
  return Number.isFinite(first) ? span((now.value - first) / 1000) : "";
};
