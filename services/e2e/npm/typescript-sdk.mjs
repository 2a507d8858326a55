// The official TypeScript SDK, version 1, as client.mjs uses it.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { ResultSchema } from '@modelcontextprotocol/sdk/types.js';

export { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

export const newClient = (info) => new Client(info);
export const callTool = (client, params, options) => client.callTool(params, undefined, options);
export const request = (client, message) => client.request(message, ResultSchema);
