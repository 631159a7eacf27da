/** Remembered approvals: which calls nobody is asked about again for a while, and how to end that. */
import { useState } from "./vendor/hooks.mjs";
import { Resource, send } from "./net.mjs";
import { Confirm, Countdown, Peer, Region, Time, html, plural, spoken, useLive, visible } from "./ui.mjs";

const grants = new Resource("/api/v1/grants?limit=200", "grants");
const SCOPES = { session: "for one session", "15m": "for 15 min" };

export function Grants() {
  useLive(grants);
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const revoke = async () => {
    try {
      await send("DELETE", `/api/v1/grants/${encodeURIComponent(asked.id)}`);
      spoken.value = `${asked.tool}: revoked`;
    } finally {
      void grants.load(false);
    }
  };
  return html`<${Region} resource=${grants} title="Remembered approvals" isEmpty=${(/** @type {any} */ data) => !data.grants.length}
      empty=${html`<h3>Nothing is remembered</h3><p>Who approves for a session or for 15 min, where the profile allows it, is not asked again meanwhile.</p>`}>
      ${(/** @type {any} */ data) => html`<ul class="rows" data-rows aria-label="Remembered approvals">${[...data.grants].reverse().map((/** @type {any} */ one) => html`<li key=${one.id} class="row">
        <span class="row-top"><span class="name"><${Peer} text=${one.server} /><span class="slash">/</span><b><${Peer} text=${one.tool} /></b></span><${Countdown} id=${one.id} until=${one.expires_at} label=${`Remembered for ${one.tool}`} /></span>
        <span class="row-sub"><span>for <${Peer} text=${one.principal} /> ${SCOPES[one.scope] ?? visible(one.scope)}</span><span>by <${Peer} text=${one.by} /> at <${Time} at=${one.made_at} /></span>
          <a href=${`/console/approvals/${encodeURIComponent(one.approval)}?tab=grants`}>The approval</a><button class="link" onClick=${() => setAsked(one)}>Revoke<span class="hidden"> ${visible(one.tool)} for ${visible(one.principal)}</span></button></span></li>`)}</ul>
        ${data.next && html`<p class="note">These are the newest ${data.grants.length} of ${plural(data.total, "remembered approval")}. <button class="link" onClick=${() => grants.more()}>Show older ones</button></p>`}`}<//>
    ${asked && html`<${Confirm} title=${html`Revoke <${Peer} text=${asked.tool} /> for <${Peer} text=${asked.principal} />?`} action="Revoke" run=${revoke} onClose=${() => setAsked(null)}>
      <p>The next such call asks for an approval again.</p><//>`}`;
}
