/** Overview: is it well, and does it need me? */
import { useEffect } from "./vendor/hooks.mjs";
import { Resource } from "./net.mjs";
import { nameOf, oldest, waiting, yours } from "./approvals.mjs";
import { Countdown, Peer, Region, ToolClass, Verdict, ago, html, plural, useLive, visible } from "./ui.mjs";
import { Plot } from "./plot.mjs";
import { hintOf, servers, stateOf } from "./servers.mjs";

const pins = new Resource("/api/v1/pins?waiting=1");
const status = new Resource("/api/v1/status");
const denied = new Resource("/api/v1/calls?outcome=denied&since=1h&limit=5");
const recent = new Resource("/api/v1/calls?limit=100");
const SELDOM = 30_000; // a search in the log is dearer than a list
const MINUTE = 60_000, SHORT = 9_000;
const BEGUN = "sluice.begun"; // of a browser that has seen the first call
/** What was counted when, for a minute. @type {{at: number, calls: number, denied: number}[]} */
let samples = [];

status.data.subscribe((data) => {
  if (!data?.counted) return;
  if (data.counted.calls < (samples.at(-1)?.calls ?? 0)) samples = []; // Sluice has started anew
  samples = [...samples.filter((one) => one.at > Date.now() - MINUTE), { at: Date.now(), ...data.counted }];
  if (data.counted.calls) localStorage.setItem(BEGUN, "1");
});

export function Overview() {
  for (const resource of [waiting, servers, pins, status]) useLive(resource);
  useEffect(() => {
    const load = () => { void denied.load(); void recent.load(); };
    load();
    const timer = setInterval(() => { if (!document.hidden) load(); }, SELDOM);
    return () => clearInterval(timer);
  }, []);
  return html`<header class="head"><h1>Overview</h1></header>
    <${FirstSteps} /><${Needs} />
    <div class="tiles">
      <${Health} /><${ServersTile} /><${CallsTile} /><${AuditTile} />
    </div>
    <div class="columns">
      <section class="panel" aria-labelledby="o-approvals"><header><h2 id="o-approvals">Approvals for you</h2><a href="/console/approvals">All</a></header>
        <${Region} resource=${waiting} title="Approvals" isEmpty=${() => yours().length === 0}
          empty=${html`<p>Nothing waits for you. New ones appear here at once.</p>`}>${() => html`<ul class="rows">${yours().slice(0, 6).map((/** @type {any} */ one) => html`
          <li><a class="row" href=${`/console/approvals/${one.id}`}><span class="row-top"><span class="name"><${Peer} text=${one.server} /><span class="slash">/</span><b><${Peer} text=${one.tool} /></b></span>
            <${Countdown} id=${one.id} until=${one.expires_at} label=${nameOf(one)} /></span>
            <span class="row-sub"><${ToolClass} word=${one.class} /><span>for <${Peer} text=${one.principal} /></span></span></a></li>`)}</ul>`}<//></section>
      <section class="panel" aria-labelledby="o-servers"><header><h2 id="o-servers">Servers</h2><a href="/console/servers">All</a></header>
        <${Region} resource=${servers} title="Servers" isEmpty=${(/** @type {any} */ data) => data.servers.length === 0}
          empty=${html`<p>No server is configured. <code>sluice init</code> takes over those of your client.</p>`}>${(/** @type {any} */ data) => html`
          <ul class="rows">${[...data.servers].sort(troubled).slice(0, 8).map((/** @type {any} */ one) => html`<li><a class="row" href=${`/console/servers/${encodeURIComponent(one.key)}`}>
            <span class="row-top"><b><${Peer} text=${one.key} /></b><${Verdict} word=${stateOf(one)} /></span>
            ${one.last_error && stateOf(one) !== "up" && html`<span class="row-sub"><${Peer} text=${one.last_error} /></span>`}${hintOf(one) && html`<span class="row-sub">${visible(hintOf(one))}</span>`}</a></li>`)}</ul>`}<//></section>
      <section class="panel" aria-labelledby="o-denied"><header><h2 id="o-denied">Denied in the last hour</h2><a href="/console/activity?outcome=denied&since=1h">All</a></header>
        <${Region} resource=${denied} title="Calls" isEmpty=${(/** @type {any} */ data) => data.calls.length === 0} empty=${html`<p>No call was denied.</p>`}>${(/** @type {any} */ data) => html`
          <ul class="rows">${data.calls.map((/** @type {any} */ one) => html`<li><a class="row" href=${`/console/activity/${encodeURIComponent(one.id)}?outcome=denied`}>
            <span class="row-top"><span class="name"><${Peer} text=${one.server ?? ""} /><span class="slash">/</span><b><${Peer} text=${one.own ?? one.asked ?? one.method} /></b></span><span class="dim">${ago(one.time)}</span></span>
            <span class="row-sub"><span>for <${Peer} text=${one.principal} /></span>${one.rule && html`<span>by <${Peer} text=${one.rule} /></span>`}</span></a></li>`)}</ul>`}<//></section>
      <section class="panel" aria-labelledby="o-calls"><header><h2 id="o-calls">Newest calls</h2><a href="/console/activity">All</a></header>
        <${Region} resource=${recent} title="Calls" isEmpty=${(/** @type {any} */ data) => data.calls.length < 2} empty=${html`<p>Their number and how long they took are drawn from the second on.</p>`}>${(/** @type {any} */ data) => html`
          <${Plot} rows=${data.calls} />`}<//></section>
    </div>`;
}

const troubled = (/** @type {any} */ a, /** @type {any} */ b) =>
  Number(stateOf(a) === "up") - Number(stateOf(b) === "up") || a.key.localeCompare(b.key);

/** What waits for a person, of all kinds, in one line each. */
function Needs() {
  const found = /** @type {any[]} */ ([]);
  const count = yours().length;
  if (count) found.push(html`<a href="/console/approvals"><b>${plural(count, "approval")}</b> for you, the oldest for ${oldest()}</a>`);
  const changed = (pins.data.value?.pins ?? []).filter((/** @type {any} */ row) => row.withheld);
  if (changed.length) {
    const of = [...new Set(changed.map((/** @type {any} */ row) => row.server))];
    found.push(html`<a href="/console/catalog"><b>${plural(changed.length, "changed definition")}</b> withheld: <${Peer} text=${of.join(", ")} /></a>`);
  }
  const rows = servers.data.value?.servers ?? [], keys = (/** @type {any[]} */ some) => html`<${Peer} text=${some.map((one) => one.key).join(", ")} />`;
  const logins = rows.filter((/** @type {any} */ one) => one.needs_login);
  if (logins.length) found.push(html`<a href="/console/servers"><b>${plural(logins.length, "server")}</b> to log in to: ${keys(logins)}</a>`);
  const down = rows.filter((/** @type {any} */ one) => !["up", "starting", "login_needed"].includes(stateOf(one)));
  if (down.length) found.push(html`<a href="/console/servers"><b>${plural(down.length, "server")}</b> not up: ${keys(down)}</a>`);
  if (waiting.data.value === null && servers.data.value === null) return null;
  return html`<section class=${`needs ${found.length ? "wait" : "good"}`} aria-label="What needs you">
    ${found.length === 0 ? html`<p><${Verdict} word="ok" tone="good" /> Nothing needs you.</p>` : html`<p class="lead">${found.length === 1 ? "One thing needs you" : `${found.length} things need you`}</p><ul>${found.map((one) => html`<li>${one}</li>`)}</ul>`}</section>`;
}

const Tile = ({ title, children }) => html`<section class="tile"><h2>${title}</h2>${children}</section>`;

/** For a first visit: three steps, each ticked once it is done. */
function FirstSteps() {
  const counted = status.data.value?.counted, rows = servers.data.value?.servers;
  if (!counted || !rows || localStorage.getItem(BEGUN)) return null;
  const steps = [
    [rows.some((/** @type {any} */ one) => stateOf(one) === "up"), "A server is up", html`<code>sluice add NAME -- COMMAND</code> adds one, <code>sluice init</code> takes over those of a client.`],
    [counted.requests > 0, "A client is connected", html`<code>sluice install</code> writes Sluice into the config of your client.`],
    [counted.calls > 0, "A first call", html`Have your client use a tool. It appears in <a href="/console/activity">Activity</a>.`],
  ];
  return html`<section class="panel first" aria-labelledby="o-first"><header><h2 id="o-first">First steps</h2></header><ol class="sentences steps">${steps.map(([isDone, what, how]) => html`
    <li><${Verdict} word=${isDone ? "done" : "to do"} tone=${isDone ? "good" : "off"} /> <b>${what}</b>${!isDone && html` <span class="dim">${how}</span>`}</li>`)}</ol></section>`;
}

function Health() {
  const { data: { value: data }, failure: { value: failure } } = status;
  return html`<${Tile} title="Sluice">${failure && failure.status !== 403 ? html`<${Verdict} word="error" /><p class="dim"><${Peer} text=${failure.message} /></p>`
    : data ? html`<${Verdict} word=${data.status} tone=${data.status === "ready" ? "good" : "bad"} /><p class="dim">policy <${Peer} text=${data.policy.revision.slice(0, 8)} />, <${Peer} text=${data.policy.mode} /></p>` : blank(status)}<//>`;
}

/** What stands where nothing is known. @param {Resource} of */
const blank = (of) => html`<p class="dim">${of.failure.value?.status === 403 ? "no right" : "…"}</p>`;

function CallsTile() {
  if (!status.data.value) return html`<${Tile} title="Calls">${blank(status)}<//>`;
  const [first, last] = [samples[0], samples.at(-1)], counted = status.data.value?.counted;
  const rate = last && last.at - first.at >= SHORT ? Math.round((last.calls - first.calls) * MINUTE / (last.at - first.at)) : null;
  return html`<${Tile} title="Calls">${rate === null ? html`<p class="dim">${counted ? "The rate appears in some seconds" : "…"}</p>` : html`<p class="figure">${rate.toLocaleString("en")}<span class="of"> a minute</span></p>`}
    <p class="dim">${counted ? `${plural(counted.calls, "call")} since the start, ${counted.denied.toLocaleString("en")} denied` : "telemetry.metrics is off"}</p><//>`;
}

function ServersTile() {
  if (!servers.data.value) return html`<${Tile} title="Servers">${blank(servers)}<//>`;
  const rows = servers.data.value.servers;
  const sum = (/** @type {string} */ name) => rows.reduce((/** @type {number} */ all, /** @type {any} */ one) => all + (one[name] ?? 0), 0);
  return html`<${Tile} title="Servers"><p class="figure">${rows.filter((/** @type {any} */ one) => stateOf(one) === "up").length}<span class="of"> / ${rows.length} up</span></p>
    <p class="dim">${plural(sum("in_flight"), "call")} in flight, ${plural(sum("restarts"), "restart")}</p><//>`;
}

function AuditTile() {
  const data = status.data.value, head = data?.audit?.signed;
  return html`<${Tile} title="Audit log">${head ? html`<${Verdict} word="signed" tone="good" /><p class="dim">checkpoint ${ago(head.time)}, up to record ${Number(head.seq).toLocaleString("en")}</p>`
    : data?.audit ? html`<${Verdict} word="not signed" tone="wait" /><p class="dim"><${Peer} text=${data.audit.problem || "the first records are not ten seconds old"} /></p>`
    : html`<p class="dim">${data || status.failure.value ? "no log, or no right to read it" : "…"}</p>`}<//>`;
}
