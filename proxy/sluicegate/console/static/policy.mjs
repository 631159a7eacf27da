/** Policy: who asks for what, what is decided, and by which row. */
import { useEffect, useState } from "./vendor/hooks.mjs";
import { signal } from "./vendor/signals.mjs";
import { post } from "./net.mjs";
import { Lines, NoRight, Peer, Verdict, html, visible } from "./ui.mjs";
import { go, query } from "./router.mjs";

const METHODS = { "tools/call": "call a tool", "prompts/get": "get a prompt", "resources/read": "read a resource" };
/** What was typed as arguments: it may hold a secret, and never stands in the address. */
const typed = signal("");
/** The arguments of a question that another page asks. @param {any} values */
export const fillIn = (values) => { typed.value = values === undefined || Object.keys(values).length === 0 ? "" : JSON.stringify(values, null, 2); };

/** Where a recorded call is asked about again; empty for a method that no row is about. @param {any} call */
export function asPolicyQuestion({ principal, method, server, own }) {
  if (!METHODS[method] || !server || own === undefined) return "";
  return `/console/policy?${new URLSearchParams({ as: principal, method, target: `${server}/${own}` })}`;
}

export function Policy() {
  const asked = Object.fromEntries(["as", "method", "target"].map((name) => [name, query.value.get(name) ?? ""]));
  const [answer, setAnswer] = useState(/** @type {any} */ (null)), [failure, setFailure] = useState(/** @type {any} */ (null)), [isBusy, setBusy] = useState(Boolean(asked.as && asked.target));
  const ask = async () => {
    setBusy(true);
    setFailure(null);
    try {
      const given = typed.value.trim() ? { arguments: JSON.parse(typed.value) } : {};
      setAnswer({ ...(await post("/api/v1/policy/explain", { ...asked, ...given })), asked: { ...asked, ...given } });
    } catch (problem) {
      setAnswer(null);
      setFailure(problem instanceof SyntaxError ? new Error("The arguments are not JSON.") : problem);
    }
    setBusy(false);
  };
  useEffect(() => { if (asked.as && asked.target) void ask(); }, [asked.as, asked.method, asked.target]);
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    const form = new FormData(event.target), next = new URLSearchParams();
    for (const name of ["as", "method", "target"]) next.set(name, String(form.get(name)).trim());
    typed.value = String(form.get("arguments"));
    if (next.toString() === query.value.toString()) void ask();
    else go(`/console/policy?${next}`);
  };
  return html`<header class="head"><h1>Policy</h1></header>
    <form class="panel question" onSubmit=${submit}>
      <label>Client<input name="as" data-filter required spellcheck="false" autocomplete="off" placeholder="key:NAME, jwt:ISSUER#SUB, local" value=${asked.as} /></label>
      <label>Wants to<select name="method">${Object.entries(METHODS).map(([name, words]) => html`<option value=${name} selected=${name === (asked.method || "tools/call")}>${words}</option>`)}</select></label>
      <label>Target<input name="target" required spellcheck="false" autocomplete="off" placeholder="SERVER/NAME, or the name that clients see" value=${asked.target} /></label>
      <label class="all"><span>Arguments, as JSON <span class="dim">(optional)</span></span><textarea name="arguments" rows="3" spellcheck="false">${typed.value}</textarea></label>
      <button class="main" disabled=${isBusy}>Explain</button></form>
    <div role="status" aria-live="polite" aria-busy=${isBusy}>${failure && (failure.status === 403 ? html`<${NoRight} text=${failure.message} title="Policy" />`
      : html`<p class="note bad" role="alert"><${Peer} text=${failure.message} />${(failure.status === 0 || failure.status >= 500) && html` <button class="link" onClick=${ask}>Try again</button>`}</p>`)}
      ${answer ? html`<${Answer} one=${answer} />` : !failure && !isBusy && html`<div class="empty"><h3>Ask why</h3><p>The verdict, the row that decides and every other row that speaks of the request are shown here, as <code>sluice explain</code> shows them.</p></div>`}</div>`;
}

const quoted = (/** @type {string} */ text) => (/^[\w@%+=:,./#-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const VERBS = { "tools/call": "call", "prompts/get": "get", "resources/read": "read" };

/** What was answered, as a row of `policy.tests`; empty where the policy alone does not say so. Its rows are YAML, as all JSON is. */
function asTest({ asked, rows = [], ...one }) {
  if (one.absent || one.grant || !one.object) return "";
  const origins = (/** @type {string} */ kind) => (one.roles ?? []).map((/** @type {string[]} */ way) => way[0]).filter((/** @type {string} */ name) => name.startsWith(kind));
  const who = { id: one.principal, roles: origins("role:"), groups: origins("group:") }, expect = one.arguments ? "invalid_arguments" : one.would_deny ? "deny" : one.verdict;
  const row = rows.find((/** @type {any} */ some) => some.at === one.rule)?.row, isTool = asked.method === "tools/call";
  return `- ${JSON.stringify({ as: who, [VERBS[asked.method]]: `${one.server}/${one.object.slice(one.object.indexOf(":") + 1)}`, class: isTool && one.class ? one.class : undefined,
    args: isTool ? asked.arguments : undefined, expect, path: one.arguments?.path, profile: expect === "ask" ? one.approval ?? undefined : undefined, because: one.arguments ? undefined : row })}`;
}

const Copied = ({ title, text, label }) => html`<section class="block"><h3>${title} <button class="link" onClick=${() => void navigator.clipboard?.writeText(text)}>Copy</button></h3><${Lines} lines=${[text]} label=${label} /></section>`;

function Answer({ one }) {
  const { asked } = one, rows = one.rows ?? [], test = asTest(one);
  const words = ["sluice", "explain", asked.method, asked.target, "--as", asked.as, ...(asked.arguments ? ["--args", JSON.stringify(asked.arguments)] : [])];
  const why = one.absent ?? (one.arguments ? `argument ${one.arguments.path}: ${one.arguments.message}` : one.grant ? `the grant ${one.grant}: nobody is asked while it lasts` : "");
  return html`<article class="card answer"><header class="card-head"><div><h2><${Peer} text=${asked.target} /></h2>
      <p class="meta"><${Verdict} word=${one.verdict} /> for <${Peer} text=${one.principal} />${one.class && html`<span class="dim">class <${Peer} text=${one.class} /> (<${Peer} text=${one.class_from} />)</span>`}
        ${one.would_deny && html`<span class="badge wait">shadow mode: would be denied</span>`}</p></div></header>
    ${(one.notes ?? []).map((/** @type {string} */ note) => html`<p class="note wait"><${Peer} text=${note} /></p>`)}
    <section class="block"><h3>What decides</h3>${why && html`<p class="note"><${Peer} text=${why} /></p>`}
      <p>${one.rule ? html`<code><${Peer} text=${one.rule} /></code> ` : ""}<${Peer} text=${one.reason} /></p>
      ${one.source ? html`<${Source} source=${one.source} at=${one.rule} />` : rows.length > 0 && rows[0].at === one.rule && html`<p class="dim">The file has changed since it came into force: its lines are not shown.</p>`}</section>
    <section class="block"><h3>All rows that speak of it</h3>${rows.length ? html`<div class="scroll"><table class="plain"><thead><tr><th>Says</th><th>Row</th></tr></thead><tbody>${
      rows.map((/** @type {any} */ row) => html`<tr><td><${Verdict} word=${row.says} /></td><td><${Peer} text=${row.at} /> <code><${Peer} text=${row.row} /></code></td></tr>`)}</tbody></table></div>`
      : html`<p class="dim">No row speaks of it.</p>`}</section>${Object.entries(one.hooks ?? {}).map(([on, names]) => names.length > 0 && html`<p>Hooks that are asked on ${on}: <${Peer} text=${names.join(", ")} /></p>`)}
    ${one.roles?.length > 0 && html`<section class="block"><h3>Roles</h3><ul>${one.roles.map((/** @type {string[]} */ way) => html`<li><${Peer} text=${way.join(" → ")} /></li>`)}</ul></section>`}
    <${Copied} title="The same in a terminal" text=${words.map(quoted).join(" ")} label="Command" />
    ${test && html`<${Copied} title="The same as a test" text=${test} label="A row of policy.tests" />`}
    ${one.revision && html`<p class="dim">Policy revision <${Peer} text=${one.revision} /></p>`}</article>`;
}

/** The deciding line of the file, with what stands around it. */
function Source({ source, at }) {
  const deciding = Number(at.split(":").pop());
  return html`<pre class="lines source" tabindex="0" role="region" aria-label="Lines of the policy file" dir="ltr">${source.lines.map((/** @type {string} */ line, /** @type {number} */ index) => html`
<span class=${`line ${source.first + index === deciding ? "deciding" : ""}`}><span class="number">${source.first + index}${source.first + index === deciding ? " ▸" : ""}</span> ${visible(line)}${"\n"}</span>`)}</pre>`;
}
