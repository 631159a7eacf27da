/** A small picture of the calls that are loaded: how many, how many were refused, and how long they took. */
import { clock, html, plural } from "./ui.mjs";

const WIDTH = 600, HEIGHT = 60, BARS = 60;

/** @param {number | undefined} seconds */
export const ms = (seconds) =>
  seconds === undefined ? "" : seconds < 0.01 ? `${(seconds * 1000).toFixed(1)} ms` : seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;

/** @param {number[]} sorted @param {number} part */
const quantile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
const isRefused = (/** @type {any} */ one) => one.outcome === "denied";

/** @param {{rows: any[]}} props */
export function Plot({ rows }) {
  const timed = rows.map((one) => ({ one, at: Date.parse(one.time) })).filter(({ at }) => !Number.isNaN(at));
  if (timed.length < 2) return null;
  const from = Math.min(...timed.map(({ at }) => at)), to = Math.max(...timed.map(({ at }) => at)), span = Math.max(1, to - from);
  const bars = Array.from({ length: BARS }, () => ({ all: 0, refused: 0, slowest: 0 }));
  for (const { one, at } of timed) {
    const bar = bars[Math.min(BARS - 1, Math.floor(((at - from) / span) * BARS))];
    bar.all++;
    bar.refused += isRefused(one) ? 1 : 0;
    bar.slowest = Math.max(bar.slowest, one.seconds ?? 0);
  }
  const most = Math.max(...bars.map((bar) => bar.all)), slow = Math.max(...bars.map((bar) => bar.slowest), 0.001);
  const durations = timed.map(({ one }) => one.seconds).filter((seconds) => seconds !== undefined).sort((a, b) => a - b);
  const refused = rows.filter(isRefused).length;
  const counts = `${plural(timed.length, "call")} from ${clock(from)} to ${clock(to)}, ${refused} refused.`;
  const times = durations.length ? `Half took at most ${ms(quantile(durations, 0.5))}, 95 % at most ${ms(quantile(durations, 0.95))}, the slowest ${ms(durations.at(-1))}.` : "None has ended.";
  return html`<figure class="plots"><div><${Bars} name=${counts} values=${bars.map((bar) => [bar.all / most, bar.refused / most])} /><figcaption>${counts}</figcaption></div>
    <div><${Bars} name=${times} values=${bars.map((bar) => [Math.log1p(bar.slowest * 1000) / Math.log1p(slow * 1000), 0])} /><figcaption>${times}</figcaption></div></figure>`;
}

/** @param {{name: string, values: number[][]}} props */
function Bars({ name, values }) {
  const step = WIDTH / values.length;
  const bar = (/** @type {number} */ part, /** @type {number} */ index, /** @type {string} */ kind) => part > 0
    && html`<rect class=${kind} x=${index * step + 1} y=${HEIGHT - Math.max(3, part * HEIGHT)} width=${step - 2} height=${Math.max(3, part * HEIGHT)} />`;
  return html`<svg class="plot" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${name}>${
    values.map(([all, part], index) => html`${bar(all, index, "all")}${bar(part, index, "refused")}`)}</svg>`;
}
