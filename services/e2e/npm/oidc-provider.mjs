// An OpenID provider for tests: the package oidc-provider. Its access tokens are JWTs for the requested resource (RFC
// 8707). A person signs in with any name and any password, and belongs to the group "developers". If the name contains a
// dot, the person also belongs to the group after the dot: "ana.finance". Clients may register themselves (RFC 7591). The client "ci" with the secret "ci-secret-of-the-tests" may use the grant client_credentials.
// The client "sluice" is for `sluice login`: its ID tokens contain the groups.
//
// The environment variable ACCESS_TOKEN_TTL is the lifetime of access tokens, in seconds. Refresh tokens are replaced
// with each use.
//
// The first line of standard output is the URL of the provider. The program ends when standard input ends.
import { generateKeyPairSync } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const server = createServer().listen(0, '127.0.0.1');
await once(server, 'listening');
const url = `http://127.0.0.1:${server.address().port}`;
const groupsOf = (name) => ['developers', ...name.split('.').slice(1)];
const provider = new Provider(url, {
  clients: [{
    client_id: 'ci', client_secret: 'ci-secret-of-the-tests', grant_types: ['client_credentials'], response_types: [], redirect_uris: [], scope: 'tools',
  }, {
    application_type: 'native', client_id: 'sluice', grant_types: ['authorization_code', 'urn:ietf:params:oauth:grant-type:device_code'],
    redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'], scope: 'openid groups', token_endpoint_auth_method: 'none',
  }],
  claims: { openid: ['sub'], groups: ['groups'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['of the tests'] },
  extraTokenClaims: (_context, token) => ({ groups: groupsOf(token.accountId ?? '') }),
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: true },
    deviceFlow: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_context, resource) => ({ scope: 'tools', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: Number(process.env.ACCESS_TOKEN_TTL ?? 300), jwt: { sign: { alg: 'RS256' } } }),
      useGrantedResource: () => true,
    },
  },
  findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id, groups: groupsOf(id) }) }),
  rotateRefreshToken: true,
  jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), kid: 'first', use: 'sig', alg: 'RS256' }] },
  scopes: ['openid', 'offline_access', 'groups', 'tools'],
});
provider.on('server_error', (_context, error) => console.error('server_error', error));
server.on('request', provider.callback());
process.stdout.write(url + '\n');
process.stdin.resume().on('end', () => process.exit(0));
