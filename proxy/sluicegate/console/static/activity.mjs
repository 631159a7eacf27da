/** Activity: what clients called, newest first as it happens, and one call from the row that decided to what proves it. */
import { useEffect, useMemo, useState } from "./vendor/hooks.mjs";
import { signal } from "./vendor/signals.mjs";
import { Failure, Resource, get, getExactly, serverTime } from "./net.mjs";
import { Lines, Peer, Region, Time, Verdict, clock, html, plural, visible } from "./ui.mjs";
import { route } from "./router.mjs";
import { asPolicyQuestion, fillIn } from "./policy.mjs";
import { Plot, ms } from "./plot.mjs";
import { Filters, filtersOf } from "./filters.mjs";

const MAX_ROWS = 500;
const SECOND = 1_000; // the first rows are asked for again at most that often
const FILTERS = { who: "Who", server: "Server", tool: "Tool", verdict: "Verdict", outcome: "Outcome", q: "Text", since: "Since", until: "Until" };
const HINTS = { who: "key:NAME", server: "its key", tool: "NAME, or with *", q: "any word", since: "1h, or a date" };
const calledBefore = (/** @type {string} */ until, /** @type {string} */ rest) => html`Calls before <${Peer} text=${until} />. <a href=${pathOf(rest)}>Back to the newest</a>`;
const CHOICES = {
  verdict: ["allow", "deny", "ask", "would_deny"],
  outcome: ["ok", "tool_error", "protocol_error", "denied", "waiting", "timeout", "cancelled", "unknown"],
};
const TONES = { ok: "good", allow: "good", denied: "bad", deny: "bad", would_deny: "wait", ask: "wait", waiting: "wait", running: "wait", cancelled: "off" };
const PROOFS = { proved: "good", behind: "wait", not_verified: "off", broken: "bad" };

const Word = ({ word }) => html`<${Verdict} word=${word.replaceAll("_", " ")} tone=${TONES[word] ?? (word ? "bad" : "off")} />`;
const outcomeOf = (/** @type {any} */ one) => (one.is_open ? "running" : one.outcome || "unknown");
const verdictOf = (/** @type {any} */ one) => (one.would_deny ? "would_deny" : one.verdict || "none");
const Target = ({ one }) => html`<span class="name">${one.server && html`<${Peer} text=${one.server} /><span class="slash">/</span>`}<b><${Peer} text=${one.own ?? one.asked ?? one.public ?? one.method} /></b></span>`;

const filters = () => filtersOf(FILTERS);
const pathOf = (/** @type {string} */ filter, id = "") => `/console/activity${id && `/${encodeURIComponent(id)}`}${filter && `?${filter}`}`;

/** The calls that match a filter. Rows that come while somebody reads further down are counted, and wait in `fresh`. */
class Feed {
  /** @param {string} filter */
  constructor(filter) {
    this.filter = filter;
    this.rows = signal(/** @type {any[] | null} */ (null));
    this.fresh = signal(/** @type {any[]} */ ([]));
    this.failure = signal(/** @type {Failure | null} */ (null));
    this.data = this.rows; // as a region shows it
    this.at = signal(0);
    this.next = signal("");
    this.searched = signal({ to: "", isPartial: false });
    this.isCut = signal(false);
    this.isFast = signal(false);
    this.isAsking = false;
    this.seen = "";
    this.rest = 0; // until when the log is left alone: a search that took long is not repeated each second
  }

  /** @param {string} before @param {boolean} background @returns {Promise<any>} */
  async page(before, background) {
    const wanted = new URLSearchParams(this.filter);
    if (before) wanted.set("before", before);
    const began = Date.now();
    this.isAsking = true;
    try {
      const data = await get(`/api/v1/calls?${wanted}`, background);
      this.failure.value = null;
      this.at.value = serverTime();
      return data;
    } catch (problem) {
      if (problem instanceof Failure) this.failure.value = problem;
      return null;
    } finally {
      this.isAsking = false;
      this.rest = Date.now() + Math.max(SECOND, 10 * (Date.now() - began));
    }
  }

  /** The newest rows. @param {boolean} isReading whoever reads further down is not moved */
  async load(isReading, background = true) {
    if (this.isAsking) return;
    const data = await this.page("", background), rows = this.rows.value;
    if (data === null) {
      if (this.failure.value?.status === 403) this.rows.value = null;
      return;
    }
    const seen = `${isReading} ${JSON.stringify(data.calls)}`;
    if (rows !== null && seen === this.seen) return;
    this.seen = seen;
    const known = new Map((rows ?? []).map((one) => [one.id, one.time])), changed = new Map(data.calls.map((/** @type {any} */ one) => [one.id, one]));
    // A call that ended meanwhile is among the newest again: the same record at the same time is where both lists meet.
    const meets = data.calls.some((/** @type {any} */ one) => known.get(one.id) === one.time) || !data.next || !rows?.length;
    if (!isReading) this.isFast.value = !meets;
    if (rows === null || (!meets && !isReading)) {
      this.rows.value = data.calls;
      this.ends(data);
      return;
    }
    if (rows.length === 0) this.ends(data);
    const same = rows.map((one) => changed.get(one.id) ?? one);
    const fresh = data.calls.filter((/** @type {any} */ one) => !known.has(one.id));
    this.fresh.value = isReading ? fresh : [];
    this.show(isReading ? same : [...fresh, ...same]);
  }

  async older() {
    const data = await this.page(this.next.value, false);
    if (data === null) return;
    const known = new Set((this.rows.value ?? []).map((one) => one.id));
    this.ends(data);
    this.show([...(this.rows.value ?? []), ...data.calls.filter((/** @type {any} */ one) => !known.has(one.id))]);
  }

  /** @param {any} data */
  ends(data) {
    this.next.value = data.next ?? "";
    this.searched.value = { to: data.searched_to, isPartial: data.partial };
    this.isCut.value = false;
  }

  /** @param {any[]} rows */
  show(rows) {
    rows.sort((a, b) => b.time.localeCompare(a.time));
    this.isCut.value ||= rows.length > MAX_ROWS;
    this.rows.value = rows.slice(0, MAX_ROWS);
  }
}

const isPaused = signal(false);
let last = new Feed("-");

export function Activity() {
  const filter = filters(), chosen = route.value.item;
  if (last.filter !== filter) last = new Feed(filter);
  const feed = last;
  useEffect(() => {
    if (chosen) return undefined;
    const turn = () => {
      if (document.hidden || (isPaused.value && feed.rows.value !== null) || Date.now() < feed.rest || feed.failure.value?.status === 403) return;
      void feed.load(scrollY > 60 && feed.rows.value !== null);
    };
    turn();
    const timer = setInterval(turn, SECOND);
    return () => clearInterval(timer);
  }, [feed, chosen]);
  if (chosen) return html`<a class="back always" href=${pathOf(filter)}>← All calls</a><${Call} key=${chosen} id=${chosen} />`;
  return html`<header class="head"><h1>Activity</h1><button aria-pressed=${isPaused.value} onClick=${() => { isPaused.value = !isPaused.value; }}>${isPaused.value ? "Resume" : "Pause"}</button></header>
    <${Filters} titles=${FILTERS} hints=${HINTS} choices=${CHOICES} focus="q" label="Filter calls" pathOf=${pathOf} note=${calledBefore} />
    <${Region} resource=${feed} title="Calls">${(/** @type {any[]} */ rows) => html`<${List} feed=${feed} rows=${rows} filter=${filter} />`}<//>`;
}

function List({ feed, rows, filter }) {
  const { to, isPartial } = feed.searched.value, oldest = rows.at(-1)?.time;
  const before = new URLSearchParams(filter);
  if (oldest) before.set("until", oldest);
  const isNew = feed.fresh.value.length;
  const catchUp = () => { scrollTo(0, 0); void feed.load(false, false); };
  return html`${feed.isFast.value && html`<p class="note">Calls come faster than they are shown: the list begins with the newest 100. Pause it to go further back.</p>`}<${Plot} rows=${rows} />
    <div class="hold" role="status">${isNew > 0 && html`<button class="main" onClick=${catchUp}>${isNew >= 100 ? "100 or more" : isNew} new</button>`}</div>
    ${rows.length === 0 ? html`<div class="empty"><h3>${filter ? "No call matches" : "No call yet"}</h3><p>${filter ? "Take a filter away, or go back further." : "Calls of clients appear here as they end."}</p></div>` : html`
    <ul class="rows calls" data-rows>${rows.map((/** @type {any} */ one) => html`<li key=${one.id}><a class="row call" href=${pathOf(filter, one.id)}>
      <span class="dim"><${Time} at=${one.time} /></span><span class="who-called"><${Peer} text=${one.principal} /></span><${Target} one=${one} />
      <${Word} word=${verdictOf(one)} /><${Word} word=${outcomeOf(one)} /><span class="ms dim">${ms(one.seconds)}</span></a></li>`)}</ul>`}
    <p class="older">${feed.isCut.value || rows.length >= MAX_ROWS ? html`${plural(rows.length, "call")}, as many as are shown at once. <a href=${pathOf(before.toString())}>Older than these</a>`
      : feed.next.value ? html`${isPartial && html`Searched back to ${clock(to)} of ${to.slice(0, 10)}. `}<button onClick=${() => feed.older()}>${isPartial ? "Go on" : "Show older ones"}</button>`
        : html`<span class="dim">The log has no older ones.</span>`}</p>`;
}

/* ---------------------------------------------------------------- one call */

const linesOf = (/** @type {any} */ value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2)).split("\n");

function Call({ id }) {
  const resource = useMemo(() => new Resource((/** @type {boolean} */ background) => getExactly(`/api/v1/calls/${encodeURIComponent(id)}`, background)), [id]);
  useEffect(() => {
    void resource.load(false);
    const timer = setInterval(() => { if (!document.hidden && resource.data.value?.call.is_open) void resource.load(); }, 5 * SECOND);
    return () => clearInterval(timer);
  }, [resource]);
  if (resource.failure.value?.status === 404) return html`<div class="empty"><h1>There is no such call</h1><p><${Peer} text=${resource.failure.value.message} /></p></div>`;
  return html`<${Region} resource=${resource} title="This call">${(/** @type {any} */ data) => html`<${Story} story=${data} reload=${() => resource.load(false)} />`}<//>`;
}

/** What took the time until then. @param {any} at @param {any} one */
function stageOf({ stage }, one) {
  if (stage === "intent") return "decide, and record the intent";
  if (stage !== "outcome") return stage;
  return one.timing.some((/** @type {any} */ other) => other.stage === "intent") ? "server" : one.outcome === "denied" ? "decide" : "outcome";
}

const Sentences = ({ title, items = [], line }) => items.length > 0 && html`<section class="block"><h2>${title}</h2><ul class="sentences">${items.map((/** @type {any} */ at) => html`<li>${line(at)}</li>`)}</ul></section>`;

function Story({ story, reload }) {
  const { call: one, proof } = story, decision = one.decision ?? {}, policy = asPolicyQuestion(one);
  return html`<article class="card"><header class="card-head"><div><h1><${Target} one=${one} /></h1>
      <p class="meta"><${Word} word=${verdictOf(one)} /><${Word} word=${outcomeOf(one)} />${one.reason && one.reason !== one.outcome && html`<span class="badge"><${Peer} text=${one.reason} /></span>`}<span class="dim"><${Time} at=${one.time} />${one.seconds !== undefined && `, ${ms(one.seconds)}`}</span></p></div></header>
    ${story.partial && html`<p class="note wait">The search ended before all records of this call were found.</p>`}
    <section class="block"><h2>Decision</h2>
      <p><${Word} word=${verdictOf(one)} />${" "}${decision.rule ? html`by <code><${Peer} text=${decision.rule} /></code>` : "by no row"}${decision.would_deny && " (shadow mode: it would be denied)"}${decision.policy && html` <span class="dim">of policy <${Peer} text=${decision.policy} /></span>`}</p>
      ${decision.grant && html`<p class="dim">A remembered approval: <${Peer} text=${decision.grant} /></p>`}
      ${policy && html`<p><a href=${policy} onClick=${() => fillIn(one.arguments)}>Explain it in Policy</a> <span class="dim">with the policy of now, and the arguments as the log has them</span></p>`}</section>
    <dl class="facts"><dt>Who</dt><dd><${Peer} text=${one.principal} class="strong" />${one.owner && html`, owner <${Peer} text=${one.owner} />`}
        ${one.client?.name && html`<span class="dim">; the client says it is “<${Peer} text=${[one.client.name, one.client.version].filter(Boolean).join(" ")} />”</span>`}</dd>
      ${one.roles?.length > 0 && html`<dt>Roles</dt><dd><${Peer} text=${one.roles.join(", ")} /></dd>`}
      <dt>Method</dt><dd><${Peer} text=${one.method} /></dd>
      ${one.trace && html`<dt>Trace</dt><dd><code><${Peer} text=${one.trace} /></code></dd>`}<dt>Call</dt><dd><code><${Peer} text=${one.id} /></code></dd></dl>
    <${Recorded} title="Arguments" of="the client" value=${one.arguments} digest=${one.arguments_digest} />
    <${Recorded} title="Result" of="the server" value=${one.result} digest=${one.result_digest} isCut=${one.result_cut} />
    <section class="block"><h2>Timing</h2><div class="scroll"><table class="plain tight"><tbody>${one.timing.map((/** @type {any} */ at) => html`<tr><td class="dim"><${Time} at=${at.time} /></td><td><${Peer} text=${stageOf(at, one)} /></td><td>${ms(at.after)}</td></tr>`)}</tbody></table></div></section>
    <${Sentences} title="Hooks" items=${one.hooks} line=${(/** @type {any} */ at) => html`<${Peer} text=${at.hook} class="strong" /> on <${Peer} text=${at.on} /> <${Word} word=${at.verdict} />${at.profile && html` (profile <${Peer} text=${at.profile} />)`}${at.reason && html` “<${Peer} text=${at.reason} />”`}${at.redacted && html` <code><${Peer} text=${at.redacted.join(" ")} /></code>`} <span class="dim">${at.cached ? "remembered" : ms(at.seconds)}</span>`} />
    <${Sentences} title="Approvals" items=${one.approvals} line=${(/** @type {any} */ at) => html`<a href=${`/console/approvals/${encodeURIComponent(at.id)}`}><${Peer} text=${at.id} /></a> <${Peer} text=${at.state ?? ""} class="strong" />${at.approver && html` by <${Peer} text=${at.approver} />`}${at.comment && html` “<${Peer} text=${at.comment} />”`} <span class="dim"><${Time} at=${at.time} /></span>`} />
    <${Sentences} title="Other rounds" items=${one.rounds} line=${(/** @type {any} */ at) => html`<a href=${pathOf(filters(), at.id)}><${Peer} text=${at.id} /></a> <${Word} word=${outcomeOf(at)} /> <span class="dim"><${Time} at=${at.time} /></span>`} />
    <${Proof} proof=${proof} reload=${reload} /></article>`;
}

function Recorded({ title, of, value, digest, isCut = false }) {
  const [isOpen, setOpen] = useState(false), lines = value === undefined ? [] : linesOf(value);
  return html`<section class="block"><h2>${title} ${value !== undefined && html`<span class="author">written by ${of}, as the log has it</span>`}${isCut && html` <span class="badge bad">cut</span>`}</h2>
    ${value === undefined ? html`<p class="dim">${digest ? html`Not in the log. Its digest: <${Peer} text=${digest} />` : "None."}</p>` : html`<${Lines} lines=${isOpen ? lines : lines.slice(0, 60)} label=${title} />`}
    ${lines.length > 60 && !isOpen && html`<button onClick=${() => setOpen(true)}>Show all ${lines.length} lines</button>`}</section>`;
}

/** What vouches for the records, in words: a mark alone would claim too much. */
function Proof({ proof, reload }) {
  const weakest = proof.records.find((/** @type {any} */ one) => one.state === proof.state) ?? {};
  const signed = Math.max(...proof.records.map((/** @type {any} */ one) => one.signed ?? 0));
  const words = {
    proved: `proved: signed up to record ${signed.toLocaleString("en")}`, behind: "behind: no checkpoint covers it yet",
    not_verified: `not verified: ${visible(weakest.why ?? "nothing vouches for it")}`, broken: `BROKEN: ${visible(weakest.why ?? "")}`,
  };
  return html`<section class="block"><h2>Proof</h2><p class="proof"><${Verdict} word=${words[proof.state] ?? proof.state} tone=${PROOFS[proof.state] ?? "off"} />${proof.state === "behind" && html` <button class="link" onClick=${reload}>Check again</button>`}</p>
    <p class="dim">${plural(proof.records.length, "record")} of the audit log: <${Peer} text=${proof.records.map((/** @type {any} */ one) => `${one.writer} ${one.seq} (${one.type})`).join(", ")} /></p></section>`;
}
