// What every client driver does against an MCP endpoint: script.py says it all; this is the same in JavaScript.
// Both TypeScript SDKs have the same verbs, so only what differs between them is the driver's.
'use strict';

const { randomBytes } = require('node:crypto');

const ARGUMENTS = {
  text: 'grüße ☃ \u0001 "quoted" \\ / 𝄞',
  whole: 9007199254740991,
  real: 0.1,
  nothing: null,
  deep: { list: [1, [2, { three: 3 }], []], empty: {}, '': 'no name' },
};

// what every client answers when it is asked
const CAPABILITIES = { elicitation: {}, sampling: {}, roots: {} };
const ANSWERS = {
  'elicitation/create': ({ params }) => {
    const form = { name: 'Ada', color: 'blue' };
    const names = Object.keys(params.requestedSchema.properties);
    return { action: 'accept', content: Object.fromEntries(names.map((name) => [name, form[name]])) };
  },
  'sampling/createMessage': () => ({
    role: 'assistant',
    content: { type: 'text', text: 'Good morning' },
    model: 'none',
    stopReason: 'endTurn',
  }),
  'roots/list': () => ({ roots: [{ uri: 'file:///home/ada' }] }),
};

const PAGES = {
  tools: ['listTools', 'tools', 'name'],
  prompts: ['listPrompts', 'prompts', 'name'],
  resources: ['listResources', 'resources', 'uri'],
  templates: ['listResourceTemplates', 'resourceTemplates', 'uriTemplate'],
};

const job = JSON.parse(process.argv[2]);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// A promise that `done()` resolves.
function signal() {
  let done;
  const promise = new Promise((resolve) => (done = resolve));
  return { promise, done };
}

function within(seconds, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done after ${seconds} s`)), seconds * 1000);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// driver: {name, client, revision(), callTool(params, options), changes() -> {promise, close}}
async function run(driver) {
  const { client } = driver;
  const { tools } = job;
  const report = {
    client: driver.name,
    errors: {},
    revision: driver.revision(),
    server: client.getServerVersion()?.name,
  };

  async function step(name, work, seconds = 60) {
    try {
      report[name] = await within(seconds, work());
    } catch (error) {
      report.errors[name] = `${error?.name}: ${error?.message}`;
    }
  }

  // v2 walks all pages when it is given no cursor, v1 gives one page a call: both end without a cursor
  async function pages(kind) {
    const [verb, items, key] = PAGES[kind];
    const found = [];
    let cursor;
    do {
      const page = await client[verb](cursor === undefined ? {} : { cursor }, { cacheMode: 'bypass' });
      found.push(page[items].map((item) => item[key]));
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return found;
  }

  async function call(name, args, options) {
    const result = await driver.callTool({ name, arguments: args }, options);
    const text = result.content.filter((block) => block.type === 'text').map((block) => block.text);
    return { error: result.isError === true, value: valueOf(text.join('')) };
  }

  async function progress() {
    const seen = [];
    const onprogress = ({ progress, total }) => seen.push([progress, total ?? null]);
    const answer = await call(tools.slow, { ms: 2000, steps: 4, run: randomBytes(4).toString('hex') }, { onprogress });
    return { seen, answer };
  }

  async function cancel() {
    const name = randomBytes(4).toString('hex');
    const running = signal();
    const stop = new AbortController();
    const calling = call(
      tools.slow,
      { ms: 30000, steps: 300, run: name },
      { onprogress: () => running.done(), signal: stop.signal }
    );
    calling.catch(() => {}); // it is meant to fail
    await running.promise;
    stop.abort('enough');
    let state = {};
    for (let tries = 0; tries < 100 && state.state !== 'cancelled'; tries++) {
      state = (await call(tools.was_cancelled, { run: name })).value;
      await pause(50);
    }
    return state;
  }

  async function listChanged() {
    const changes = await driver.changes();
    await call(tools.add_tool, { name: job.adds });
    await changes.promise;
    await changes.close();
    // Other clients add tools of theirs at the same time, so the change may have been one of those. The step has an end.
    while (!(await pages('tools')).flat().includes(job.added)) await new Promise((done) => setTimeout(done, 100));
    return { listed: true, answer: await call(job.added, {}) };
  }

  async function complete(ref, argument, value) {
    const answer = await client.complete({ ref, argument: { name: argument, value } });
    return answer.completion.values;
  }

  async function callEach() {
    const answers = [];
    for (const [name, args] of job.calls ?? []) answers.push(await call(name, args));
    return answers;
  }

  for (const kind of Object.keys(PAGES)) await step(kind, () => pages(kind));
  await step('echo', () => call(tools.echo, ARGUMENTS));
  await step('read', async () => (await client.readResource({ uri: job.resource })).contents[0].text);
  await step('read_template', async () => {
    const answer = await client.readResource({ uri: job.template.replace('{id}', '42') });
    return answer.contents[0].text;
  });
  await step('prompt', async () => {
    const answer = await client.getPrompt({ name: job.prompt, arguments: { arg1: 'one', arg2: 'two' } });
    return answer.messages[0].content.text;
  });
  await step('complete_prompt', () => complete({ type: 'ref/prompt', name: job.prompt }, 'arg1', 'he'));
  await step('complete_template', () => complete({ type: 'ref/resource', uri: job.template }, 'id', 'wo'));
  await step('progress', progress);
  await step('cancel', cancel);
  for (const name of Object.keys(job.asking)) await step(`ask_${name}`, () => call(job.asking[name], {}));
  await step('list_changed', listChanged);
  await step('calls', callEach, 60);
  return report;
}

// Prints the report and leaves: open streams must not keep the process.
async function main(driver) {
  const report = await run(driver);
  await within(20, driver.client.close()).catch(() => {});
  process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(0));
}

module.exports = { ANSWERS, CAPABILITIES, job, main, signal };
