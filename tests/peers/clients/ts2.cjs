// The TypeScript SDK 2.x as a client, modern where it can be. See script.py.
'use strict';

const { Client, SSEClientTransport, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');
const { ANSWERS, CAPABILITIES, job, main, signal } = require('./script.cjs');

const client = new Client(
  { name: 'ts2', version: '1.0.0' },
  { versionNegotiation: { mode: 'auto' }, capabilities: CAPABILITIES }
);
for (const [method, answer] of Object.entries(ANSWERS)) client.setRequestHandler(method, answer);

function transport() {
  if (job.sse) return new SSEClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
  if (job.url) return new StreamableHTTPClientTransport(new URL(job.url), { requestInit: { headers: job.headers } });
  const [command, ...args] = job.command;
  return new StdioClientTransport({ command, args, env: job.env });
}

client.connect(transport()).then(() =>
  main({
    name: 'ts2',
    client,
    revision: () => client.getNegotiatedProtocolVersion(),
    callTool: (params, options) => client.callTool(params, options),
    changes: async () => {
      const { promise, done } = signal();
      client.setNotificationHandler('notifications/tools/list_changed', done);
      if (job.sse) return { promise, close: async () => {} }; // a transport that implies the other era
      const subscription = await client.listen({ toolsListChanged: true });
      return { promise, close: () => subscription.close() };
    },
  })
);
