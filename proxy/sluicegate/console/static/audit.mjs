/** Audit: every record of the log, newest first, and the proof that the log is whole and unchanged. */
import { useEffect, useMemo, useState } from "./vendor/hooks.mjs";
import { signal } from "./vendor/signals.mjs";
import { Resource, getExactly, post } from "./net.mjs";
import { Lines, Peer, Region, Time, Verdict, clock, html, plural, spoken, useRequest } from "./ui.mjs";
import { Filters, filtersOf } from "./filters.mjs";

const SECOND = 1_000;
const FILTERS = { type: "Type", principal: "Who", tool: "Tool", outcome: "Outcome or reason", call: "Call", since: "Since", until: "Until" };
const HINTS = { principal: "key:NAME", tool: "NAME, or with *", outcome: "denied, …", call: "its id", since: "1h, or a date", until: "now, or a date" };
const CHOICES = { type: ["intent", "outcome", "decision", "approval", "pin", "policy", "identity", "admin", "checkpoint"] };
const TONES = { ok: "good", approved: "good", consumed: "good", denied: "bad", cancelled: "off" };

const pathOf = (/** @type {string} */ filter) => `/console/audit${filter && `?${filter}`}`;

export function Audit() {
  const filter = filtersOf(FILTERS);
  return html`<header class="head"><h1>Audit</h1></header><${Proof} />
    <${Filters} titles=${FILTERS} hints=${HINTS} choices=${CHOICES} focus="principal" label="Filter records" pathOf=${pathOf} />
    <${Export} filter=${filter} /><${Found} key=${filter} filter=${filter} />`;
}

/** Records leave by the command line alone: no page holds a whole log. */
function Export({ filter }) {
  const given = new URLSearchParams(filter), isAll = [...given.keys()].every((name) => ["since", "until", "type"].includes(name));
  const options = [...given].map(([name, value]) => ` --${name} '${value.replaceAll("'", "'\\''")}'`).join("");
  return html`<details class="filter-box"><summary>Export these records</summary>
    <${Lines} lines=${[isAll ? `sluice audit export${options} > audit.jsonl` : `sluice audit search --json${options} > audit.jsonl`]} label="Command that exports these records" />
    <p class="dim">Run it where the log is. ${isAll ? "--format ocsf or ecs is for a SIEM." : "It exports the records that these filters find."}</p></details>`;
}

/* ---------------------------------------------------------------- search */

function Found({ filter }) {
  const older = useMemo(() => signal(/** @type {any[]} */ ([])), [filter]);
  const newest = useMemo(() => new Resource((/** @type {boolean} */ background) => getExactly(`/api/v1/audit/records?${filter}`, background)), [filter]);
  const { run, failure, isBusy } = useRequest();
  const load = () => { older.value = []; return newest.load(false); };
  useEffect(() => void load(), [newest]);
  const goOn = (/** @type {string} */ before) => run(async () => {
    older.value = [...older.value, await getExactly(`/api/v1/audit/records?${filter}&before=${encodeURIComponent(before)}`)];
  });
  return html`<${Region} resource=${newest} title="Records">${(/** @type {any} */ first) => {
    const pages = [first, ...older.value], last = pages.at(-1), rows = pages.flatMap((page) => page.records);
    return html`${rows.length === 0 ? html`<div class="empty"><h3>${last.next ? "No record matches so far" : "No record matches"}</h3><p>${last.next ? "Older ones may." : "Take a filter away, or go back further."}</p></div>`
      : html`<ul class="rows" data-rows aria-label="Records">${rows.map((one) => html`<${Row} key=${`${one.writer} ${one.seq}`} one=${one} />`)}</ul>`}
      ${failure && html`<p class="note bad" role="alert"><${Peer} text=${failure.message} /></p>`}
      <p class="older">${last.partial && html`Searched back to ${clock(last.searched_to)} of ${last.searched_to.slice(0, 10)}. `}${last.next
        ? html`<button disabled=${isBusy} onClick=${() => goOn(last.next)}>${last.partial ? "Go on" : "Show older ones"}</button>` : html`<span class="dim">The log has no older ones.</span>`}
        ${" "}<button class="quiet" onClick=${load}>Reload</button></p>`;
  }}<//>`;
}

const about = (/** @type {any} */ one) => [one.server, one.own ?? one.asked ?? one.public ?? one.method ?? one.name ?? one.object].filter(Boolean).join(" / ") || one.act || one.what || "";

function Row({ one }) {
  const [isOpen, setOpen] = useState(false);
  const word = one.outcome ?? one.approval?.state ?? one.decision?.verdict ?? "", who = one.approval?.approver ?? one.principal ?? one.by ?? one.address ?? "";
  return html`<li><details class="record" onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}><summary class="row">
      <span class="dim"><${Time} at=${one.time} /></span><span class="badge"><${Peer} text=${one.type} /></span>${who && html`<span><${Peer} text=${who} /></span>`}<b><${Peer} text=${about(one)} /></b>${
      word && html`<${Verdict} word=${String(word).replaceAll("_", " ")} tone=${TONES[word] ?? ""} />`}</summary>
    ${isOpen && html`<div class="block"><p class="dim">Record ${one.seq.toLocaleString("en")} of <${Peer} text=${one.writer} />, ${one.time}${one.call && html`. <a href=${`/console/activity/${encodeURIComponent(one.call)}`}>The whole call</a>`}</p>
      <${Lines} lines=${JSON.stringify(one, null, 2).split("\n")} label="Record, as the log has it" /></div>`}</details></li>`;
}

/* ---------------------------------------------------------------- proof */

const proof = new Resource("/api/v1/audit/verify");

function Proof() {
  const { run, failure } = useRequest();
  const state = proof.data.value?.state;
  useEffect(() => void proof.load(false), []);
  useEffect(() => {
    if (state !== "running") return undefined;
    const timer = setInterval(() => { if (!document.hidden) void proof.load(); }, SECOND / 2);
    return () => { clearInterval(timer); spoken.value = "The proof of the log has ended"; };
  }, [state]);
  const start = () => run(async () => { proof.data.value = await post("/api/v1/audit/verify"); });
  return html`<section class="panel needs" aria-labelledby="u-proof"><header><h2 id="u-proof">Proof of the whole log</h2></header>
    <${Region} resource=${proof} title="Proof">${(/** @type {any} */ data) => html`
      ${failure && html`<p class="note bad" role="alert"><${Peer} text=${failure.message} /></p>`}
      ${state === "none" && html`<p class="dim">Nobody has asked for it since this Sluice started. Every record is read, its place in the chain and every signature are checked.</p>`}
      ${state === "running" && html`<p><progress max=${data.of_bytes || 1} value=${data.bytes} aria-label="Proof of the log" /> ${plural(data.records, "record")} read</p>`}
      ${state === "failed" && html`<p class="note bad"><${Peer} text=${data.error} /></p>`}
      ${state === "done" && html`<ul class="sentences">${data.writers.map((/** @type {any} */ one) => html`<${Chain} one=${one} />`)}</ul>${data.writers.length === 0 && html`<p class="dim">There is no log.</p>`}`}
      <p class="actions start"><button disabled=${state === "running"} onClick=${start}>${state === "none" ? "Verify the log" : state === "running" ? "Verifying" : "Verify again"}</button>${
        data.ended_at && html`<span class="dim">${plural(data.records, "record")}, ended at <${Time} at=${data.ended_at} /></span>`}</p>`}<//></section>`;
}

/** One writer's chain in words: a mark alone would claim too much. */
function Chain({ one }) {
  return html`<li>${one.writer && html`<b><${Peer} text=${one.writer} /></b> `}${one.findings.length === 0 && one.signed > 0 && html`<${Verdict} word=${`proved: signed up to record ${one.signed.toLocaleString("en")}`} tone="good" />
      <span class="dim"> at ${one.signed_at}</span> `}${one.findings.length === 0 && (one.tail > 0 || !one.signed) && html`<${Verdict} word=${`behind: ${plural(one.tail, "newer record")}, not signed yet`} tone="wait" />`}
    ${one.findings.map((/** @type {any} */ bad) => html`<p class="proof"><${Verdict} word="BROKEN" tone="bad" /> <code><${Peer} text=${`${bad.file}${bad.line ? `:${bad.line}` : ""}`} /></code>${bad.seq > 0 && ` record ${bad.seq.toLocaleString("en")}: `} <${Peer} text=${bad.text} /></p>`)}
    ${one.notes.map((/** @type {string} */ note) => html`<p class="dim"><${Peer} text=${note} /></p>`)}</li>`;
}
