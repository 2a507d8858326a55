// Drives the official TypeScript SDK for tests in Go. The file sdk.mjs, which must be in the same folder, selects the
// version of the SDK. Each line of standard input is a command, and each line of standard output is the response to a
// command, with the command's id. All lines are JSON objects. Commands run concurrently, so responses come in the order
// in which they are ready.
//
//   {"id":1,"op":"connect","url":"http://…/mcp","token":"…"}        token, headers {name: value} and
//                                                                   negotiate (version 2: true requests the revisions with server/discover) are optional
//   {"id":1,"op":"authorize","url":"http://…/mcp","redirect":"http://…/callback","clientId":"…"}
//                                                                   begins a sign-in; without clientId the client registers
//                                                                   itself; the result is {"authorizationUrl"}
//   {"id":1,"op":"finishAuth","code":"…","iss":"…"}                 ends the sign-in and connects; negotiate is optional
//   {"id":2,"op":"listTools","params":{…}}
//   {"id":3,"op":"callTool","name":"…","arguments":{…},"_meta":{…},"progress":true,"timeoutMs":1000}
//   {"id":4,"op":"request","method":"resources/list","params":{…}}  any other request
//   {"id":5,"op":"close"}                                           ends the session
//
//   {"id":3,"result":{…} or "error":{"name","code","message","data"},"progress":[…],"http":[{"sent","status","headers","body"}]}
//
// `result` is the value that the SDK returns, with numbers as doubles. `http` holds the POST requests of the command and
// the responses, byte for byte. The program ends when standard input ends.
import { AsyncLocalStorage } from 'node:async_hooks';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { StreamableHTTPClientTransport, callTool, newClient, request } from './sdk.mjs';

const bodyPatienceMs = 2000; // time for the rest of a body after the SDK has returned
const current = new AsyncLocalStorage(); // the HTTP exchanges of the running command
let client, transport;

// recordingFetch calls fetch and records the request and the response for the running command.
async function recordingFetch(url, init) {
  const response = await fetch(url, init);
  const exchanges = current.getStore();
  if (init?.method === 'POST' && exchanges) {
    const exchange = { sent: String(init.body ?? ''), status: response.status, headers: Object.fromEntries(response.headers), body: '' };
    exchange.complete = readBody(response.clone(), exchange);
    exchanges.push(exchange);
  }
  return response;
}

async function readBody(response, exchange) {
  const decoder = new TextDecoder();
  try {
    for await (const chunk of response.body ?? []) exchange.body += decoder.decode(chunk, { stream: true });
  } catch (error) {
    exchange.broken = String(error); // the connection was closed, which the SDK reports separately
  }
}

// SignIn holds the state of a sign-in in memory. It is an OAuthClientProvider of the SDK.
class SignIn {
  constructor(redirect, clientId) {
    this.redirectUrl = redirect;
    if (clientId) this.client = { client_id: clientId };
  }
  get clientMetadata() {
    return {
      client_name: 'sluice-e2e', redirect_uris: [this.redirectUrl], grant_types: ['authorization_code'], response_types: ['code'],
      token_endpoint_auth_method: 'none', scope: 'openid', application_type: 'native',
    };
  }
  clientInformation() { return this.client; }
  saveClientInformation(client) { this.client = client; }
  tokens() { return this.saved; }
  saveTokens(tokens) { this.saved = tokens; }
  redirectToAuthorization(url) { this.authorizationUrl = String(url); }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  codeVerifier() { return this.verifier; }
}

let signIn, signInURL;

const operations = {
  async authorize({ url, redirect, clientId }) {
    signIn = new SignIn(redirect, clientId);
    signInURL = url;
    transport = new StreamableHTTPClientTransport(new URL(url), { fetch: recordingFetch, authProvider: signIn });
    client = newClient({ name: 'sluice-e2e', version: '1.0.0' }, false);
    try {
      await client.connect(transport);
    } catch (error) {
      if (!signIn.authorizationUrl) throw error;
      return { authorizationUrl: signIn.authorizationUrl };
    }
    throw new Error('the server has accepted a request without a token');
  },
  async finishAuth({ code, iss, negotiate = false }) {
    await transport.finishAuth(code, iss);
    transport = new StreamableHTTPClientTransport(new URL(signInURL), { fetch: recordingFetch, authProvider: signIn });
    client = newClient({ name: 'sluice-e2e', version: '1.0.0' }, negotiate);
    await client.connect(transport);
    return {};
  },
  async connect({ url, token, headers = {}, negotiate = false }) {
    const authorization = token ? { Authorization: `Bearer ${token}` } : {};
    transport = new StreamableHTTPClientTransport(new URL(url), {
      fetch: recordingFetch,
      requestInit: { headers: { ...headers, ...authorization } },
    });
    client = newClient({ name: 'sluice-e2e', version: '1.0.0' }, negotiate);
    client.onerror = (error) => console.error('client:', error.message);
    await client.connect(transport);
    return {
      sessionId: transport.sessionId,
      protocolVersion: transport.protocolVersion,
      serverInfo: client.getServerVersion(),
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions(),
    };
  },
  listTools: ({ params }) => client.listTools(params),
  callTool({ name, arguments: args, _meta, progress, timeoutMs }, report) {
    const options = { timeout: timeoutMs };
    if (progress) Object.assign(options, { onprogress: report, resetTimeoutOnProgress: true });
    return callTool(client, { name, arguments: args, _meta }, options);
  },
  request: ({ method, params }) => request(client, { method, params }),
  async close() {
    await transport.terminateSession();
    await client.close();
    return {};
  },
};

async function answer(command) {
  const progress = [];
  const http = [];
  const outcome = {};
  try {
    const operation = operations[command.op];
    if (!operation) throw new Error(`unknown op ${command.op}`);
    outcome.result = await current.run(http, () => operation(command, (step) => progress.push(step)));
  } catch (error) {
    const { code, message, data } = error;
    outcome.error = { name: error.constructor.name, code: Number.isInteger(code) ? code : undefined, message, data };
  }
  await Promise.race([Promise.all(http.map((exchange) => exchange.complete)), sleep(bodyPatienceMs, null, { ref: false })]);
  const exchanges = http.map(({ complete, ...kept }) => kept);
  process.stdout.write(JSON.stringify({ id: command.id, ...outcome, progress, http: exchanges }) + '\n');
}

// keepDigits preserves integers that a double can't represent.
function keepDigits(_key, value, { source }) {
  const large = typeof value === 'number' && !Number.isSafeInteger(value) && /^-?[0-9]+$/.test(source);
  return large ? JSON.rawJSON(source) : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  void answer(JSON.parse(line, keepDigits));
}
process.exit(0);
