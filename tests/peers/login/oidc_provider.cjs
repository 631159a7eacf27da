// npm's `oidc-provider` as an authorization server for tests; nobody has to click.
//
//     NODE_PATH=.peers/node/node_modules node tests/peers/login/oidc_provider.cjs '{"port": 0, ...}'
//
// Prints its issuer. The one argument is a JSON object; DEFAULTS below says what it may have. Whoever opens the
// authorization endpoint is `login_hint`, else `user`, and consents to all that is asked; who is called `nobody`
// refuses. State is in memory.
//
// Control paths: GET /__counts says how often each endpoint was asked, as {"token": 3, "token.refresh_token": 2,
// "token.refresh_token.invalid_grant": 1, ...}; POST /__set takes {"user": "bob", "down": true} (503 to everybody).
'use strict';

const { generateKeyPairSync, randomBytes } = require('node:crypto');
const http = require('node:http');
const oidc = require('oidc-provider');

const DEFAULTS = {
  port: 0,
  user: 'ann',
  registration: true, // dynamic registration of clients (RFC 7591)
  documents: false, // clients may be URLs of metadata documents, of https alone
  rotation: true, // a refresh token is good for once; a second use revokes the whole grant
  tokens: 'jwt', // or "opaque"
  access_life: 3600, // seconds
  refresh_life: 14 * 24 * 3600,
  resources: null, // resource indicators that are accepted; null: all
  scopes: 'mcp:read mcp:write', // what each resource knows
  binds_scopes: false, // a client may never ask for others than the `scope` that it registered with
  clients: [], // registered before, by the metadata of RFC 7591
};

const options = { ...DEFAULTS, ...JSON.parse(process.argv[2] || '{}') };
for (const name of Object.keys(options)) {
  if (!(name in DEFAULTS)) throw new Error(`unknown option: ${name}`);
}
const state = { user: options.user, down: false };
const counts = {};
const count = (name) => { counts[name] = (counts[name] || 0) + 1; };

// A resource server asks with this one what a token is good for; tests/peers/login/resource_server.py does.
const RESOURCE_SERVER = {
  client_id: 'resource-server', client_secret: 'secret-of-the-resource-server',
  redirect_uris: [], response_types: [], grant_types: [],
};

function configuration() {
  const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
  return {
    jwks: { keys: [{ ...key, kid: 'k1', use: 'sig', alg: 'RS256' }] },
    cookies: { keys: [randomBytes(16).toString('hex')] },
    clients: [RESOURCE_SERVER, ...options.clients],
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post', 'client_secret_jwt', 'private_key_jwt'],
    scopes: ['openid', 'offline_access', ...(options.binds_scopes ? options.scopes.split(' ') : [])],
    pkce: { required: () => true },
    rotateRefreshToken: options.rotation,
    expiresWithSession: async () => false,
    issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
    findAccount: async (ctx, sub) => ({ accountId: sub, claims: async () => ({ sub }) }),
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    ttl: {
      AccessToken: options.access_life, ClientCredentials: options.access_life, RefreshToken: options.refresh_life,
      AuthorizationCode: 60, DeviceCode: 600, Grant: options.refresh_life, IdToken: 3600, Interaction: 600,
      Session: options.refresh_life,
    },
    renderError: async (ctx, out) => { ctx.type = 'html'; ctx.body = `<h1>${out.error}</h1>`; },
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: options.registration },
      clientIdMetadataDocument: { enabled: options.documents, ack: 'draft-02' },
      introspection: { enabled: true, allowedPolicy: async () => true },
      revocation: { enabled: true },
      deviceFlow: {
        enabled: true,
        userCodeInputSource: async (ctx, form) => { ctx.body = form; },
        userCodeConfirmSource: async (ctx, form) => { ctx.body = form; },
        successSource: async (ctx) => { ctx.body = 'This device is logged in.'; },
      },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: async (ctx, client, oneOf) => (Array.isArray(oneOf) ? oneOf[0] : oneOf),
        useGrantedResource: async () => true,
        getResourceServerInfo: async (ctx, resource) => {
          if (options.resources && !options.resources.includes(resource)) throw new oidc.errors.InvalidTarget();
          return {
            scope: options.scopes, audience: resource, accessTokenTTL: options.access_life,
            accessTokenFormat: options.tokens,
          };
        },
      },
    },
  };
}

// What a person would do at the login page and at the consent page.
async function interact(provider, ctx) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(ctx.req, ctx.res);
  const user = params.login_hint || (session && session.accountId) || state.user;
  let result;
  if (user === 'nobody') {
    result = { error: 'access_denied', error_description: 'the user said no' };
  } else if (prompt.name === 'login') {
    result = { login: { accountId: user } };
  } else {
    const details = { accountId: session.accountId, clientId: params.client_id };
    const grant = grantId ? await provider.Grant.find(grantId) : new provider.Grant(details);
    const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
    if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
    if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
    for (const [resource, scopes] of Object.entries(missingResourceScopes || {})) {
      grant.addResourceScope(resource, scopes.join(' '));
    }
    result = { consent: { grantId: await grant.save() } };
  }
  await provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: prompt.name === 'consent' });
  ctx.respond = false;
}

async function body(request) {
  let text = '';
  for await (const part of request) text += part;
  return JSON.parse(text || '{}');
}

// Everything that is asked comes by here first.
function door(provider) {
  return async (ctx, next) => {
    if (ctx.path === '/__counts') {
      ctx.body = counts;
    } else if (ctx.path === '/__set') {
      Object.assign(state, await body(ctx.req));
      ctx.body = state;
    } else if (state.down) {
      count('down');
      ctx.status = 503;
      ctx.body = 'down';
    } else if (ctx.path.startsWith('/interaction/')) {
      count('interaction');
      await interact(provider, ctx);
    } else {
      if (ctx.path === '/reg' && !options.binds_scopes) {
        ctx.req.body = await body(ctx.req); // it takes one that was read before
        delete ctx.req.body.scope;
      }
      await next();
      note(ctx);
    }
  };
}

function note(ctx) {
  const route = (ctx.oidc && ctx.oidc.route) || `unknown ${ctx.path}`;
  count(route);
  if (route === 'token') {
    const grant = (ctx.oidc.body && ctx.oidc.body.grant_type) || 'no grant_type';
    count(`token.${grant}`);
    if (ctx.status !== 200) count(`token.${grant}.${(ctx.body && ctx.body.error) || ctx.status}`);
  }
}

const server = http.createServer();
server.listen(options.port, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new oidc.Provider(issuer, configuration());
  provider.use(door(provider));
  provider.on('server_error', (ctx, error) => { console.error(error); });
  server.on('request', provider.callback());
  console.log(issuer);
});
process.on('SIGTERM', () => process.exit(0));
