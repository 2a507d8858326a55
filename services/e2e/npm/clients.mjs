// Drives a client that programs are built on, once:
//
//   node clients.mjs <folder of the set> <ai-sdk|langchain> <url> <token> <tool> <arguments>
//
// and prints, as JSON, the names of the tools that it lists, and the text that calling one of them gives.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, client, url, token, tool, args] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(join(folder, 'x.js')).resolve(name)));
const headers = { Authorization: `Bearer ${token}` };

async function aiSDK() {
  const { createMCPClient } = await load('@ai-sdk/mcp');
  const c = await createMCPClient({ transport: { type: 'http', url, headers } });
  const tools = await c.tools();
  const result = await tools[tool].execute(JSON.parse(args), { toolCallId: '1', messages: [] });
  await c.close();
  return { tools: Object.keys(tools), text: result.content.map((c) => c.text).join('') };
}

async function langchain() {
  const { MultiServerMCPClient } = await load('@langchain/mcp-adapters');
  const c = new MultiServerMCPClient({ mcpServers: { s: { transport: 'http', url, headers } }, prefixToolNameWithServerName: false });
  const tools = await c.getTools();
  const result = await tools.find((t) => t.name === tool).invoke(JSON.parse(args));
  await c.close();
  return { tools: tools.map((t) => t.name), text: typeof result === 'string' ? result : JSON.stringify(result) };
}

const out = await { 'ai-sdk': aiSDK, langchain }[client]();
process.stdout.write(JSON.stringify(out) + '\n');
process.exit(0);
