/** Logins: whose account each server sees, until when, and how that is ended. */
import { useState } from "./vendor/hooks.mjs";
import { Resource, send, withStepUp } from "./net.mjs";
import { Confirm, Peer, Region, Verdict, ago, html, plural, spoken, useLive, visible } from "./ui.mjs";

const logins = new Resource("/api/v1/logins?limit=200", "logins", [], ["login"]);
const STATES = { ok: ["logged in", "good"], expired: ["expired", "wait"], needed: ["login needed", "bad"], refused: ["refused", "bad"], leaving: ["logging out", "wait"] };
const WHOSE = { client: "", owner: "for all keys of one owner", gateway: "one account of all", machine: "Sluice's own account" };

export function Logins() {
  useLive(logins);
  const [asked, setAsked] = useState(/** @type {any} */ (null)), [done, setDone] = useState("");
  const end = (/** @type {any} */ one) => withStepUp({ name: one.server, why: "the tokens are revoked and deleted" }, async () => {
    const { revoked } = await (await send("DELETE", `/api/v1/logins/${encodeURIComponent(one.id)}`)).json();
    setDone(`${one.principal} is logged out of ${one.server}${revoked ? "" : "; the tokens are deleted here, and were not revoked there"}.`);
    spoken.value = `${one.server}: logged out`;
    void logins.load(false);
  }, setDone);
  return html`<header class="head"><h1>Logins</h1></header>${done && html`<p class="note" role="status"><${Peer} text=${done} /></p>`}
    <${Region} resource=${logins} title="Logins" isEmpty=${(/** @type {any} */ data) => !data.logins.length}
      empty=${html`<h3>Nobody is logged in to a server</h3><p><code>sluice login SERVER</code>, where Sluice runs, logs in to one that wants it. The page Servers says which do.</p>`}>
      ${(/** @type {any} */ data) => html`<ul class="rows" data-rows aria-label="Logins">${data.logins.map((/** @type {any} */ one) => html`<li key=${one.server + one.principal + one.id} class="row" tabindex="-1">
        <span class="row-top"><span class="name"><b><${Peer} text=${one.server} /></b><span class="slash">/</span><${Peer} text=${one.principal} /></span><${Verdict} word=${STATES[one.state]?.[0] ?? one.state} tone=${STATES[one.state]?.[1]} /></span>
        ${one.last_error && html`<span class="row-sub"><span>Last error: <${Peer} text=${one.last_error} /></span></span>`}
        <span class="row-sub">${WHOSE[one.kind] && html`<span>${WHOSE[one.kind]}</span>`}${one.issuer && html`<span>by <${Peer} text=${one.issuer} /></span>`}${one.scopes.length > 0 && html`<span>may <${Peer} text=${one.scopes.join(" ")} /></span>`}
          ${one.renewed_at && html`<span>renewed <time datetime=${one.renewed_at} title=${one.renewed_at}>${ago(one.renewed_at)}</time></span>`}${one.expires_at && html`<span>token ends <${Peer} text=${one.expires_at} />${one.can_refresh && ", then is renewed"}</span>`}
          ${one.id && html`<button class="link" onClick=${() => { setDone(""); setAsked(one); }}>Log out<span class="hidden"> ${visible(one.principal)} of ${visible(one.server)}</span></button>`}</span></li>`)}</ul>
        ${data.next && html`<p class="note">These are ${data.logins.length} of ${plural(data.total, "login")}. <button class="link" onClick=${() => logins.more()}>Show more</button></p>`}`}<//>
    ${asked && html`<${Confirm} title=${html`Log <${Peer} text=${asked.principal} /> out of <${Peer} text=${asked.server} />?`} action="Log out" run=${() => end(asked)} onClose=${() => setAsked(null)}>
      <p>Its tokens are revoked where that can be done, and deleted here. Calls that are open end. The next call asks for a login.</p><//>`}`;
}
