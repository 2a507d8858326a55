// Drives the official TypeScript SDK for tests in another language: the version that sdk.mjs, which lies
// beside this file, brings. Each line of standard input is one command, a JSON object; each line of
// standard output is the answer to one, with the command's id. Commands run at the same time, so answers
// come in the order in which they are ready.
//
//   {"id":1,"op":"connect","url":"http://…/mcp","token":"…"}        token, headers {name: value} and
//                                                                   negotiate (version 2: true asks for revisions by server/discover) are optional
//   {"id":2,"op":"listTools","params":{…}}
//   {"id":3,"op":"callTool","name":"…","arguments":{…},"_meta":{…},"progress":true,"timeoutMs":1000}
//   {"id":4,"op":"request","method":"resources/list","params":{…}}  any other request
//   {"id":5,"op":"close"}                                           ends the session
//
//   {"id":3,"result":{…} or "error":{"name","code","message","data"},"progress":[…],"http":[{"sent","status","headers","body"}]}
//
// `result` is what the SDK made of the answer, numbers as doubles. `http` holds what this command sent by
// POST and the very text that came back. The end of standard input ends the program.
import { AsyncLocalStorage } from 'node:async_hooks';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { StreamableHTTPClientTransport, callTool, newClient, request } from './sdk.mjs';

const bodyPatienceMs = 2000; // for the rest of a body after the SDK has had its answer
const current = new AsyncLocalStorage(); // the exchanges of the command that is running
let client, transport;

// recordingFetch is fetch, and keeps what went out and came back for the command that asked.
async function recordingFetch(url, init) {
  const response = await fetch(url, init);
  const exchanges = current.getStore();
  if (init?.method === 'POST' && exchanges) {
    const exchange = { sent: init.body, status: response.status, headers: Object.fromEntries(response.headers), body: '' };
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
    exchange.broken = String(error); // the connection went away; the SDK reports it in its own way
  }
}

const operations = {
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

// keepDigits lets integers that a double can't hold go out as they came in.
function keepDigits(_key, value, { source }) {
  const large = typeof value === 'number' && !Number.isSafeInteger(value) && /^-?[0-9]+$/.test(source);
  return large ? JSON.rawJSON(source) : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  void answer(JSON.parse(line, keepDigits));
}
process.exit(0);
