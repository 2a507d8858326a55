// Drives an MCP client library through its features:
//
//   node clients.mjs <folder of the set> <client> <url> <token> <tries>
//
// tries is JSON with the tool, prompt or resource to use for each feature of MCP, for example:
//
//   {"tools":{"name":"echo","arguments":{"message":"hello"}},"resources":{"uri":"demo://a"},"prompts":{"name":"p"},
//    "completion":{"name":"p","arguments":{"city":"B"}},"sampling":{"name":"ask"},"elicitation":{"name":"ask"},
//    "progress":{"name":"slow"},"cancellation":{"name":"slower"},"subscriptions":{"uri":"demo://a","name":"change"}}
//
// The program prints JSON with the listed names, and the text or the error of each feature. It uses the features one after
// the other. It subscribes to the resource first, and waits for the resource's change last.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, client, url, token, json] = process.argv.slice(2);
const tries = JSON.parse(json);
const load = (name) => import(pathToFileURL(createRequire(join(folder, 'x.js')).resolve(name)));
const headers = { Authorization: `Bearer ${token}` };
const info = { name: 'sluice-e2e', version: '1.0.0' };
const patienceMs = 15000; // longest wait for a response or notification
const texts = (result) => result.content.map((c) => c.text ?? '').join('\n');

// The responses of the clients to server requests.
const sampled = ({ params }) => ({ role: 'assistant', model: 'm', content: { type: 'text', text: `re: ${params.messages[0].content.text}` } });
const elicited = () => ({ action: 'accept', content: { name: 'ana', username: 'ana' } });

// steps counts progress notifications and reports whether each is above the previous one.
function steps(all) {
  const rising = all.every((step, i) => i === 0 || step.progress > all[i - 1].progress);
  return { text: `${all.length} steps, ${rising ? '' : 'not '}rising` };
}

// givenUp starts a long call and cancels it.
async function givenUp(call) {
  const gone = new AbortController();
  setTimeout(() => gone.abort(), 300);
  try {
    return { text: `answered ${JSON.stringify(await call(gone.signal))}` };
  } catch (error) {
    return { text: gone.signal.aborted ? 'given up' : `failed before: ${error}` };
  }
}

// whole returns the entries of all pages of a list.
async function whole(member, page) {
  const all = [];
  for (let cursor; ; ) {
    const got = await page(cursor ? { cursor } : undefined);
    all.push(...got[member]);
    cursor = got.nextCursor;
    if (!cursor) return all;
  }
}

// official returns the features of the official SDK. Both versions have the same methods, but register handlers differently.
function official(connected, heard, call) {
  return {
    async tools({ name, arguments: args }) {
      const listed = await whole('tools', (page) => connected.listTools(page));
      return { listed: listed.map((t) => t.name), text: texts(await call({ name, arguments: args })) };
    },
    async resources({ uri }) {
      const listed = await whole('resources', (page) => connected.listResources(page));
      await connected.listResourceTemplates();
      return { listed: listed.map((r) => r.uri), text: JSON.stringify(await connected.readResource({ uri })) };
    },
    async prompts({ name, arguments: args }) {
      const listed = await whole('prompts', (page) => connected.listPrompts(page));
      return { listed: listed.map((p) => p.name), text: JSON.stringify(await connected.getPrompt({ name, arguments: args })) };
    },
    async completion({ name, arguments: args }) {
      const [[argument, value]] = Object.entries(args);
      return { text: JSON.stringify(await connected.complete({ ref: { type: 'ref/prompt', name }, argument: { name: argument, value } })) };
    },
    sampling: async (t) => ({ text: texts(await call({ name: t.name, arguments: t.arguments })) }),
    elicitation: async (t) => ({ text: texts(await call({ name: t.name, arguments: t.arguments })) }),
    async progress({ name, arguments: args }) {
      const all = [];
      await call({ name, arguments: args }, { onprogress: (step) => all.push(step) });
      return steps(all);
    },
    cancellation: (t) => givenUp((signal) => call({ name: t.name, arguments: t.arguments }, { signal })),
    async subscribe({ uri }) {
      if (connected.getProtocolEra?.() === 'modern') return connected.listen({ resourceSubscriptions: [uri] });
      await connected.subscribeResource({ uri });
      return { close: () => connected.unsubscribeResource({ uri }) };
    },
    heard,
    change: (t) => call({ name: t.name, arguments: t.arguments }).then(texts),
    async close() {
      await connected.transport.terminateSession?.(); // close alone does not end the session at the server
      await connected.close();
    },
  };
}

// listener returns a handler that collects the URIs of changed resources.
function listener() {
  const uris = [];
  return { uris, hears: (notification) => uris.push(notification.params.uri) };
}

async function typescript1() {
  const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await load('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const types = await load('@modelcontextprotocol/sdk/types.js');
  const c = new Client(info, { capabilities: { sampling: {}, elicitation: {} } });
  const changes = listener();
  c.setRequestHandler(types.CreateMessageRequestSchema, sampled);
  c.setRequestHandler(types.ElicitRequestSchema, elicited);
  c.setNotificationHandler(types.ResourceUpdatedNotificationSchema, changes.hears);
  await c.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return official(c, changes.uris, (params, options) => c.callTool(params, undefined, options));
}

async function typescript2(negotiation) {
  const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
  const c = new Client(info, { ...negotiation, capabilities: { sampling: {}, elicitation: {} } });
  const changes = listener();
  c.setRequestHandler('sampling/createMessage', sampled);
  c.setRequestHandler('elicitation/create', elicited);
  c.setNotificationHandler('notifications/resources/updated', changes.hears);
  await c.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return official(c, changes.uris, (params, options) => c.callTool(params, options));
}

async function aiSDK() {
  const { createMCPClient, ElicitationRequestSchema } = await load('@ai-sdk/mcp');
  const c = await createMCPClient({ transport: { type: 'http', url, headers }, capabilities: { elicitation: {} } });
  c.onElicitationRequest(ElicitationRequestSchema, elicited);
  return {
    async tools({ name, arguments: args }) {
      const tools = await c.tools();
      return { listed: Object.keys(tools), text: texts(await tools[name].execute(args ?? {}, { toolCallId: '1', messages: [] })) };
    },
    async resources({ uri }) {
      const listed = await whole('resources', (params) => c.listResources({ params }));
      await c.listResourceTemplates();
      return { listed: listed.map((r) => r.uri), text: JSON.stringify(await c.readResource({ uri })) };
    },
    async prompts({ name, arguments: args }) {
      const listed = await whole('prompts', (params) => c.listPrompts({ params }));
      return { listed: listed.map((p) => p.name), text: JSON.stringify(await c.getPrompt({ name, arguments: args })) };
    },
    async completion({ name, arguments: args }) {
      const [[argument, value]] = Object.entries(args);
      return { text: JSON.stringify(await c.complete({ ref: { type: 'ref/prompt', name }, argument: { name: argument, value } })) };
    },
    elicitation: async (t) => ({ text: texts(await c.callTool({ name: t.name, arguments: t.arguments })) }),
    cancellation: (t) => givenUp((signal) => c.callTool({ name: t.name, arguments: t.arguments, options: { signal } })),
    close: () => c.close(),
  };
}

async function langchain() {
  const { MultiServerMCPClient } = await load('@langchain/mcp-adapters');
  const all = [];
  const c = new MultiServerMCPClient({
    mcpServers: { s: { transport: 'http', url, headers } }, prefixToolNameWithServerName: false, onProgress: (step) => all.push(step),
  });
  const tools = await c.getTools();
  const invoke = (t, options) => tools.find((tool) => tool.name === t.name).invoke(t.arguments ?? {}, options);
  return {
    async tools(t) {
      const result = await invoke(t);
      return { listed: tools.map((tool) => tool.name), text: typeof result === 'string' ? result : JSON.stringify(result) };
    },
    async resources({ uri }) {
      const listed = await c.listResources('s');
      await c.listResourceTemplates('s');
      return { listed: listed.s.map((r) => r.uri), text: JSON.stringify(await c.readResource('s', uri)) };
    },
    async progress(t) {
      all.length = 0;
      await invoke(t);
      return steps(all);
    },
    cancellation: (t) => givenUp((signal) => invoke(t, { signal })),
    close: () => c.close(),
  };
}

const clients = {
  'typescript-sdk': typescript1,
  'typescript-sdk-2': () => typescript2({}),
  'typescript-sdk-2, without sessions': () => typescript2({ versionNegotiation: { mode: 'auto' } }),
  'ai-sdk': aiSDK,
  langchain,
};

// changed waits for the notification of a changed resource. If t names a tool, changed calls the tool to cause the change. A
// tool that switches changes on and off is left off.
async function changed(c, t, subscription) {
  let said = t.name ? await c.change(t) : '';
  if (said.startsWith('Stopped')) said = await c.change(t);
  for (const until = Date.now() + patienceMs; !c.heard.includes(t.uri) && Date.now() < until; ) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  if (said.startsWith('Started')) await c.change(t);
  await subscription.close();
  return { text: `changed ${c.heard.join(' ')}` };
}

const out = {};
async function record(feature, does) {
  const overdue = new Promise((_, reject) => setTimeout(() => reject(new Error('it takes too long')), 2 * patienceMs));
  try {
    out[feature] = await Promise.race([does(), overdue]);
  } catch (error) {
    out[feature] = { error: String(error.stack ?? error) };
  }
}

const c = await clients[client]();
let subscription;
if (tries.subscriptions) {
  await record('subscriptions', async () => {
    subscription = await c.subscribe(tries.subscriptions);
  });
}
for (const feature of ['tools', 'resources', 'prompts', 'completion', 'sampling', 'elicitation', 'progress', 'cancellation']) {
  if (tries[feature]) await record(feature, () => c[feature](tries[feature]));
}
if (subscription) await record('subscriptions', () => changed(c, tries.subscriptions, subscription));
await c.close();
process.stdout.write(JSON.stringify(out) + '\n');
process.exit(0);
