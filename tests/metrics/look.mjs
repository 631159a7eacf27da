// Takes a picture of a dashboard once all of its panels have shown what they have. Prints what it saw, as JSON.
//     node look.mjs BROWSER ADDRESS USER PASSWORD PICTURE PLAYWRIGHT
// USER may be empty. PLAYWRIGHT is the folder of playwright-core, which is not installed where this file is.
import { createRequire } from "node:module";

const [browser, address, username, password, picture, playwright] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(playwright);
const TIME = 240_000;
const HEADERS = '[data-testid^="data-testid Panel header"]';
const LOADING = '[aria-label="Panel loading bar"]';
const FAILED = '[data-testid="data-testid Panel status error"]';

const running = await chromium.launch({
  executablePath: browser, args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
try {
  // Sent with every request at once: an address with a password in it is none that Grafana's scripts can ask.
  const extraHTTPHeaders = username
    ? { authorization: `Basic ${Buffer.from(`${username}:${password}`).toString("base64")}` } : {};
  const page = await running.newPage({ viewport: { width: 1600, height: 4200 }, extraHTTPHeaders });
  page.setDefaultTimeout(TIME);
  await page.goto(address, { waitUntil: "domcontentloaded", timeout: TIME });
  await page.waitForSelector(HEADERS);
  await page.waitForLoadState("networkidle");
  await page.waitForFunction((bar) => document.querySelectorAll(bar).length === 0, LOADING);
  await page.screenshot({ path: picture });
  const count = (what) => page.locator(what).count();
  const broken = await page.getByText("An unexpected error happened").count();
  console.log(JSON.stringify({ panels: await count(HEADERS), failed: await count(FAILED), broken }));
} finally {
  await running.close();
}
