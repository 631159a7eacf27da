/** Catalog: what a client is given of all servers, what it costs in tokens, and definitions that wait for a person. */
import { useEffect, useMemo, useState } from "./vendor/hooks.mjs";
import { Failure, Resource, get, post, session } from "./net.mjs";
import { Confirm, Lines, Peer, Region, Time, ToolClass, Verdict, html, plural, size, spoken, useLive, useRequest, visible } from "./ui.mjs";
import { onChange } from "./live.mjs";
import { go, query } from "./router.mjs";

const SHOWN = 100; // rows of a kind of one server; a search narrows them
const FOUND = 60; // of all servers together where a search opens them: each key draws them anew
const FEW = 4; // servers, which are all open from the beginning
const PREVIEWED = 2_000; // lines of each part
const MAX_COMPARED = 400; // lines on either side, with the common ones at both ends left out
const SLICE = 200; // definitions that are measured in one step of the page's loop
const KINDS = { tool: "Tools", resource: "Resources", template: "Templates", prompt: "Prompts", lacking: "Tools it does not get" };
const pins = new Resource("/api/v1/pins?waiting=1");
const encoder = new TextEncoder();

/** @param {string} client */
const listsOf = (client) => new Resource(async (/** @type {boolean} */ background) => {
  const as = `as=${encodeURIComponent(client)}`;
  const [tools, prompts, resources] = await Promise.all([rowsOf("tools", as, background), rowsOf("prompts", as, background), get(`/api/v1/resources?${as}`, background)]).catch((failure) => {
    throw failure.status === 404 ? new Failure(400, failure.message) : failure; // it says that there is no such client
  });
  const entries = [];
  for (const [kind, items] of Object.entries({ tool: tools, resource: resources.resources, template: resources.templates ?? [], prompt: prompts })) for (const item of items) {
    entries.push(entry(kind, item));
    if (entries.length % SLICE === 0) await rest();
  }
  return { notes: resources.next ? [`Only the first ${resources.resources.length} resources are shown.`] : [], entries };
});

/** In pages: the browser reads each in one step. @param {string} name @param {string} as @param {boolean} background @returns {Promise<any[]>} */
async function rowsOf(name, as, background, cursor = "") {
  const page = await get(`/api/v1/${name}?${as}&limit=1000${cursor && `&cursor=${encodeURIComponent(cursor)}`}`, background);
  return page.next ? [...page[name], ...await rowsOf(name, as, background, page.next)] : page[name];
}

/** Lets the page's loop go on. @returns {Promise<void>} */
const rest = () => /** @type {any} */ (globalThis).scheduler?.yield?.() ?? new Promise((done) => setTimeout(done));

/** @param {string} kind @param {any} item */
function entry(kind, item) {
  const name = String(item.uri ?? item.uriTemplate ?? item.name), mark = kind === "resource" || kind === "template" ? "+" : "__";
  const at = name.indexOf(mark), bytes = kind === "lacking" ? 0 : encoder.encode(JSON.stringify(item)).length;
  return { kind, name, item, bytes, prefix: at > 0 ? name.slice(0, at) : "", id: `${kind} ${name}`, text: `${name}\n${item.description ?? ""}`.toLowerCase() };
}

const tokens = (/** @type {number} */ bytes) => `about ${plural(Math.ceil(bytes / 4), "token")}`;
const total = (/** @type {any[]} */ entries) => entries.reduce((sum, one) => sum + one.bytes, 0);
const idOf = (/** @type {any} */ pin) => `pin ${pin.server} ${pin.era} ${pin.kind} ${pin.name}`;
const waits = (/** @type {any} */ pin) => pin.withheld || pin.waiting;
/** With what is chosen as a parameter: URIs in a path would not be canonical. @param {Record<string, string>} changed */
function pathWith(changed) {
  const next = new URLSearchParams(query.value);
  for (const [name, value] of Object.entries(changed)) if (value) next.set(name, value); else next.delete(name);
  return `/console/catalog${next.size ? `?${next}` : ""}`;
}

export function Catalog() {
  const client = query.value.get("as") || "local", sought = (query.value.get("q") ?? "").toLowerCase(), chosen = query.value.get("of") ?? "";
  const lists = useMemo(() => listsOf(client), [client]);
  const judged = useMemo(() => new Resource(`/api/v1/tools/judged?as=${encodeURIComponent(client)}`), [client]);
  const load = async (background = false) => { await lists.load(background); await judged.load(background); };
  useEffect(() => {
    void load();
    let timer = 0; // the lists are large: what comes within a second is one change
    const soon = () => { timer ||= setTimeout(() => { timer = 0; void load(true); }, 1_000); };
    const leave = onChange((isEvent) => isEvent && soon(), ["pin", "server", "policy"]);
    return () => { clearTimeout(timer); leave(); };
  }, [lists]);
  useLive(pins);
  const filter = (/** @type {string} */ name, /** @type {string} */ value) => go(pathWith({ [name]: value }), true);
  const rows = judged.data.value?.tools, about = useMemo(() => new Map((rows ?? []).map((/** @type {any} */ one) => [one.name, one])), [rows]);
  const entries = useMemo(() => [...lists.data.value?.entries ?? [], ...(rows ?? []).filter((/** @type {any} */ one) => !one.given).map((/** @type {any} */ one) => entry("lacking", one))], [lists.data.value, rows]);
  const found = useMemo(() => entries.filter((/** @type {any} */ one) => one.text.includes(sought)), [entries, sought]);
  const submit = (/** @type {any} */ event) => { event.preventDefault(); filter("as", event.target.elements.as.value.trim()); };
  return html`<div class=${`split ${chosen ? "has-item" : ""}`}>
    <section class="list" aria-label="Catalog" aria-busy=${!judged.at.value && !judged.failure.value && !lists.failure.value}><header class="head"><h1>Catalog</h1><button class="quiet" onClick=${load}>Reload</button></header>
      <form class="as" onSubmit=${submit}><label>View as<input key=${client} name="as" spellcheck="false" autocomplete="off" placeholder="local" defaultValue=${query.value.get("as") ?? ""} /></label><button>View</button></form>
      <input class="search" type="search" data-filter placeholder="Search names and descriptions" aria-label="Search names and descriptions" value=${query.value.get("q") ?? ""} onInput=${(/** @type {any} */ event) => filter("q", event.target.value)} />
      <${Waiting} chosen=${chosen} />${judged.failure.value && !lists.failure.value && html`<p class="note bad" role="alert">Class, verdict and pin could not be loaded: <${Peer} text=${judged.failure.value.message} /></p>`}
      <${Region} resource=${lists} title="Catalog" isEmpty=${() => !found.length}
        empty=${sought ? html`<h3>Nothing has that name</h3>` : html`<h3>This client is given nothing</h3><p>Servers list nothing, or the policy has no row that allows it: see <a href="/console/policy">Policy</a>.</p>`}>
        ${() => html`<${Tree} entries=${found} about=${about} chosen=${chosen} isSought=${sought !== ""} />`}<//></section>
    <section class="detail" aria-label="One definition">${chosen ? html`<a class="back" href=${pathWith({ of: "" })}>← Catalog</a>
      ${chosen.startsWith("pin ") ? html`<${Pin} key=${chosen} id=${chosen} waits=${(pins.data.value?.pins ?? []).find((/** @type {any} */ one) => idOf(one) === chosen)} />`
        : html`<${Region} resource=${lists} title="This definition">${() => html`<${Definition} one=${entries.find((/** @type {any} */ one) => one.id === chosen)} about=${about} client=${client} />`}<//>`}`
    : html`<div class="empty wide"><h2>Choose a definition</h2><p>It is shown as this client gets it, with what it costs.</p></div>`}</section></div>`;
}

function Waiting({ chosen }) {
  const rows = (pins.data.value?.pins ?? []).filter(waits);
  return rows.length > 0 && html`<section class="block waiting" aria-label="Definitions that wait"><h2>${plural(rows.length, "definition")} to look at</h2><ul class="rows" data-rows>${rows.map((/** @type {any} */ pin) => html`
    <li key=${idOf(pin)}><a class="row" href=${pathWith({ of: idOf(pin) })} aria-current=${idOf(pin) === chosen ? "true" : undefined}><span class="row-top"><b><${Peer} text=${pin.name} /></b><${Verdict} word=${pin.withheld ? "withheld" : "changed"} /></span>
      <span class="row-sub"><${Peer} text=${pin.server} /><span>${pin.kind}</span></span></a></li>`)}</ul></section>`;
}

function Tree({ entries, about, chosen, isSought }) {
  const branches = new Map(/** @type {[string, any[]][]} */ ([]));
  for (const one of entries) branches.get(one.prefix)?.push(one) ?? branches.set(one.prefix, [one]);
  const isFew = branches.size <= FEW;
  const lacking = entries.filter((/** @type {any} */ one) => one.kind === "lacking").length;
  return html`<p class="dim sum">${plural(entries.length - lacking, "definition")}, ${size(total(entries))}, ${tokens(total(entries))}${lacking > 0 && `; ${plural(lacking, "tool")} not given`}</p>${[...branches.keys()].sort().map((prefix) => {
    const own = branches.get(prefix) ?? [];
    return html`<${Branch} key=${prefix} prefix=${prefix} own=${own} about=${about} chosen=${chosen} most=${isSought ? Math.max(5, Math.ceil(FOUND / branches.size)) : SHOWN} opens=${isSought || isFew || own.some((/** @type {any} */ one) => one.id === chosen)} />`;
  })}`;
}

/** What is closed has no rows: thousands would be drawn and never seen. */
function Branch({ prefix, own, about, chosen, most, opens }) {
  const [isOpen, setOpen] = useState(opens);
  useEffect(() => setOpen(opens), [opens]);
  return html`<details class="branch" open=${isOpen} onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary><${Peer} text=${prefix || "without a prefix"} /><span class="dim">${tokens(total(own))}</span></summary>
    ${isOpen && Object.entries(KINDS).map(([kind, title]) => {
      const rows = own.filter((/** @type {any} */ one) => one.kind === kind);
      return rows.length > 0 && html`<h3>${title} <span class="dim">${rows.length.toLocaleString("en")}</span></h3><ul class="rows" data-rows>${rows.slice(0, most).map((/** @type {any} */ one) => html`
        <li key=${one.id}><a class="row leaf" href=${pathWith({ of: one.id })} aria-current=${one.id === chosen ? "true" : undefined}><${Named} one=${one} />${one.bytes > 0 && html`<span class="dim">${Math.ceil(one.bytes / 4).toLocaleString("en")}</span>`}${about.has(one.name) && ["tool", "lacking"].includes(one.kind) && html`<${Marks} judged=${about.get(one.name)} />`}</a></li>`)}</ul>
        ${rows.length > most && html`<p class="dim">${plural(rows.length - most, "more")}: a search narrows them.</p>`}`;
    })}</details>`;
}

/** What the client is not given is struck through, and says so to who does not see that. */
const Named = ({ one }) => one.kind === "lacking" ? html`<span><s><${Peer} text=${one.name} /></s><span class="hidden"> not given</span></span>` : html`<${Peer} text=${one.name} />`;

/** What is judged of a tool: class, verdict and pin. */
const Marks = ({ judged }) => html`<span class="row-sub"><${ToolClass} word=${judged.class} /><${Verdict} word=${judged.verdict} /><span>${judged.pin.replaceAll("_", " ")}</span></span>`;

function Definition({ one, about, client }) {
  if (!one) return html`<div class="empty"><h3>This client is not given it</h3><p><a href="/console/policy">Policy</a> says why.</p></div>`;
  const method = { tool: "tools/call", lacking: "tools/call", prompt: "prompts/get", resource: "resources/read" }[one.kind], isGiven = one.kind !== "lacking", judged = one.kind === "tool" || !isGiven ? about.get(one.name) : undefined;
  const why = method && `/console/policy?${new URLSearchParams({ as: client, method, target: one.name })}`;
  return html`<article class="card"><header class="card-head"><div><h2><${Named} one=${one} /></h2><p class="meta"><span class="badge">${isGiven ? one.kind : "tool"}</span><span class="dim">${isGiven ? html`as <${Peer} text=${client} /> gets it` : html`<${Peer} text=${client} /> is not given it`}</span></p></div></header>
    ${judged && html`<dl class="facts"><dt>Class</dt><dd><${ToolClass} word=${judged.class} /> <span class="dim"><${Peer} text=${judged.class_source} /></span></dd>
      <dt>Verdict</dt><dd><${Verdict} word=${judged.verdict} /> <code><${Peer} text=${judged.rule} /></code></dd><dt>Definition</dt><dd><${Verdict} word=${judged.pin.replaceAll("_", " ")} /></dd></dl>`}
    ${isGiven && html`<dl class="facts grid"><div><dt>Size as sent</dt><dd>${size(one.bytes)}</dd></div><div><dt>Cost</dt><dd>${tokens(one.bytes)}</dd></div></dl>`}
    ${one.item.description && html`<section class="block quote"><h3>Description <span class="author">written by the server</span></h3><p><${Peer} text=${one.item.description} /></p></section>`}
    ${isGiven && html`<section class="block"><h3>Definition <span class="author">written by the server</span></h3><${Lines} lines=${JSON.stringify(one.item, null, 2).split("\n")} label="Definition" /></section>`}
    ${why && html`<p><a href=${why}>What the policy says of it</a></p>`}
    ${["resource", "prompt"].includes(one.kind) && html`<${Preview} key=${one.id} one=${one} method=${method} />`}</article>`;
}

/* ---------------------------------------------------------------- preview */

function Preview({ one, method }) {
  const [answer, setAnswer] = useState(/** @type {any} */ (null)), { run, failure, isBusy } = useRequest();
  const wanted = one.kind === "prompt" ? one.item.arguments ?? [] : [];
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const given = [...event.target.querySelectorAll("input")].map((input, index) => [wanted[index].name, input.value]).filter(([, value]) => value);
    setAnswer(null);
    void run(async () => setAnswer(await post("/api/v1/preview", { method, target: one.name, ...(one.kind === "prompt" ? { arguments: Object.fromEntries(given) } : {}) })));
  };
  return html`<section class="block"><h3>Preview <span class="author">a call of your own: judged and recorded as <${Peer} text=${session.value?.principal} /></span></h3>
    <form class="block" onSubmit=${submit}>${wanted.map((/** @type {any} */ argument) => html`<label><${Peer} text=${argument.name} /><input spellcheck="false" autocomplete="off" required=${argument.required === true} /></label>`)}
      <p><button disabled=${isBusy}>${one.kind === "prompt" ? "Get it" : "Read it"}</button></p></form>
    <div class="block" role="status" aria-busy=${isBusy}>${failure && html`<p class="note bad" role="alert"><${Peer} text=${failure.message} /></p>`}
      ${answer?.failure && html`<p class="note bad"><${Peer} text=${answer.failure.message} />${answer.failure.reason && html` <span class="badge"><${Peer} text=${answer.failure.reason} /></span>`}${
        answer.failure.data?.approval?.id && html` <a href=${`/console/approvals/${encodeURIComponent(answer.failure.data.approval.id)}`}>Its approval</a>`}</p>`}
      ${answer?.result && !partsOf(answer.result).length && html`<p class="dim">The answer is empty.</p>`}
      ${answer?.result && partsOf(answer.result).map(([title, text]) => html`<p class="dim row-top"><${Peer} text=${title} /> <span class="author">written by the server</span></p><${Lines} lines=${text.split("\n").slice(0, PREVIEWED)} label=${visible(title)} />`)}
      ${answer?.call && html`<p><a href=${`/console/activity/${encodeURIComponent(answer.call)}`}>This call in Activity</a></p>`}</div></section>`;
}

/** What a server answered: each part with a title. @param {any} result @returns {[string, string][]} */
function partsOf({ contents, messages, ...rest }) {
  const shown = (/** @type {any} */ one) => (typeof one?.text === "string" ? one.text : JSON.stringify(one, null, 2) ?? "");
  if (Array.isArray(contents)) return contents.map((one) => [[one?.uri, one?.mimeType].filter(Boolean).join(", "), shown(one)]);
  if (Array.isArray(messages)) return messages.map((one) => [String(one?.role), shown(one?.content)]);
  return [["The answer", JSON.stringify(rest, null, 2)]];
}

/* ---------------------------------------------------------------- pins */

/** @param {{id: string, waits: any}} props `waits`: its row while it waits; it is loaded again when that changes */
function Pin({ id, waits }) {
  const texts = useMemo(() => new Resource(`/api/v1/pins?definitions=1&server=${encodeURIComponent(id.split(" ")[1] ?? "")}`), [id]);
  const [asked, setAsked] = useState(/** @type {any} */ (null)), [done, setDone] = useState(""), [isDenying, setDenying] = useState(false);
  useEffect(() => void texts.load(false), [texts, waits?.waiting, waits?.current]);
  const accept = async (/** @type {any} */ pin) => {
    try {
      await post("/api/v1/pins", { server: pin.server, accept: [{ kind: pin.kind, name: pin.kind === "instructions" ? "" : pin.name, fingerprint: pin.waiting }] });
      setDone("Accepted: clients get it from now on.");
      spoken.value = `${pin.name}: accepted`;
    } finally {
      void pins.load(false);
      void texts.load(false);
    }
  };
  return html`<${Region} resource=${texts} title="This definition">${(/** @type {any} */ data) => {
    const pin = data.pins.find((/** @type {any} */ one) => idOf(one) === id);
    if (!pin) return html`<div class="empty"><h3>There is no such definition any more</h3></div>`;
    const [before, after] = [pin.accepted_text, pin.waiting_text].map((text) => lines(text ?? ""));
    return html`<article class="card"><header class="card-head"><div><h2><${Peer} text=${pin.name} />${pin.shown_as && html` <span class="dim">shown as <b>${pin.shown_as}</b></span>`}</h2><p class="meta"><${Verdict} word=${pin.withheld ? "withheld" : pin.state.replaceAll("_", " ")} /><span class="badge">${pin.kind}</span><span class="dim">of <${Peer} text=${pin.server} />${
      pin.since && html`, changed at <${Time} at=${pin.since} />`}</span></p></div></header>
      ${pin.flags.map((/** @type {string} */ flag) => html`<p class="note bad"><${Peer} text=${flag} /></p>`)}${done && html`<p class="note" role="status">${done}</p>`}
      <section class="block"><h3>${pin.waiting ? before.length ? "What changed" : "What is new" : "Definition"} <span class="author">written by the server</span></h3>
        <${Lines} lines=${pin.waiting ? difference(before, after) : before} marks=${Boolean(pin.waiting)} label="Difference to the accepted definition" /></section>
      ${pin.by && html`<p class="dim">Accepted by <${Peer} text=${pin.by} />, ${pin.at}</p>`}
      ${pin.waiting ? html`<div class="actions start"><button class="main" onClick=${() => setAsked(pin)}>Accept</button>
          ${pin.withheld && html`<button onClick=${() => { spoken.value = `${pin.name}: stays withheld`; go(pathWith({ of: "" })); }}>Keep withheld</button>`}
          ${pin.deny_row && html`<button aria-expanded=${isDenying} onClick=${() => setDenying(!isDenying)}>Deny in config</button>`}</div>
        <p class="dim">${pin.withheld ? "It stays withheld until somebody accepts it." : "Clients get it, although nobody accepted it."}</p>
        ${isDenying && html`<section class="block"><h3>This row in a file of policy.files denies it to everybody</h3><${Lines} lines=${[pin.deny_row]} label="The row that denies it" /></section>`}`
        : html`<p class="dim">Nothing waits to be accepted here.</p>`}
      ${asked && html`<${Confirm} title=${html`Accept <${Peer} text=${asked.name} /> of <${Peer} text=${asked.server} />?`} action=${`Accept ${visible(asked.name)}`} run=${() => accept(asked)} onClose=${() => setAsked(null)}>
        <p>Clients get exactly the definition that is shown, by its fingerprint. If the server changes it first, it stays withheld.</p><p class="dim"><code>${asked.waiting}</code></p><//>`}</article>`;
  }}<//>`;
}

/** Compact JSON in lines. The text is not parsed: a number or a name that is written twice stays as it is written. @param {string} text */
function lines(text) {
  let depth = 0, isIn = false, out = "";
  for (let index = 0; index < text.length; index++) {
    const char = text[index];
    if (isIn && char === "\\") { out += char + (text[++index] ?? ""); continue; }
    if (char === '"') isIn = !isIn;
    const opens = !isIn && "{[".includes(char), closes = !isIn && "}]".includes(char);
    if (closes) depth--;
    if (closes && !"{[".includes(text[index - 1])) out += `\n${"  ".repeat(Math.max(0, depth))}`;
    out += char;
    if (opens) depth++;
    if ((opens && !"}]".includes(text[index + 1])) || (!isIn && char === ",")) out += `\n${"  ".repeat(depth)}`;
    if (!isIn && char === ":") out += " ";
  }
  return out ? out.split("\n") : [];
}

/** Lines of both, with " ", "-" or "+" before each. Long parts are not compared: all of one, then all of the other. */
function difference(/** @type {string[]} */ before, /** @type {string[]} */ after) {
  let start = 0, end = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end++;
  const a = before.slice(start, before.length - end), b = after.slice(start, after.length - end);
  const same = (/** @type {string[]} */ part) => part.map((line) => `  ${line}`);
  const changed = Math.max(a.length, b.length) > MAX_COMPARED ? [...a.map((line) => `- ${line}`), ...b.map((line) => `+ ${line}`)] : compared(a, b);
  return [...same(before.slice(0, start)), ...changed, ...same(before.slice(before.length - end))];
}

/** By the longest common subsequence. */
function compared(/** @type {string[]} */ a, /** @type {string[]} */ b) {
  const longest = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const out = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push(`  ${a[i++]}`); j++; }
    else if (j >= b.length || (i < a.length && longest[i + 1][j] >= longest[i][j + 1])) out.push(`- ${a[i++]}`);
    else out.push(`+ ${b[j++]}`);
  }
  return out;
}
