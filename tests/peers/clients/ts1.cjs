// The TypeScript SDK 1.x as a client: legacy only. See script.py.
'use strict';

const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
const { SSEClientTransport } = require('@modelcontextprotocol/sdk/client/sse.js');
const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
const {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ToolListChangedNotificationSchema,
} = require('@modelcontextprotocol/sdk/types.js');
const { ANSWERS, CAPABILITIES, job, main, signal } = require('./script.cjs');

const client = new Client({ name: 'ts1', version: '1.0.0' }, { capabilities: CAPABILITIES });
const changed = signal();
let agreed;

function transport() {
  if (job.sse) return new SSEClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
  if (job.url) return new StreamableHTTPClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
  const [command, ...args] = job.command;
  return new StdioClientTransport({ command, args, env: job.env });
}

// the SDK tells the transport which revision was agreed, and keeps it to itself otherwise
function watched(inner) {
  const tell = inner.setProtocolVersion?.bind(inner);
  inner.setProtocolVersion = (revision) => {
    agreed = revision;
    tell?.(revision);
  };
  return inner;
}

client.setRequestHandler(ElicitRequestSchema, ANSWERS['elicitation/create']);
client.setRequestHandler(CreateMessageRequestSchema, ANSWERS['sampling/createMessage']);
client.setRequestHandler(ListRootsRequestSchema, ANSWERS['roots/list']);
client.setNotificationHandler(ToolListChangedNotificationSchema, changed.done);
client.connect(watched(transport())).then(() =>
  main({
    name: 'ts1',
    client,
    revision: () => agreed,
    callTool: (params, options) => client.callTool(params, undefined, options),
    changes: async () => ({ promise: changed.promise, close: async () => {} }),
  })
);
