// The official TypeScript SDK, version 2, as client.mjs uses it. By default it opens a session as version 1 does. With
// negotiate it requests the server's revisions first.
import { Client } from '@modelcontextprotocol/client';

export { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

export const newClient = (info, negotiate) => new Client(info, negotiate ? { versionNegotiation: { mode: 'auto' } } : {});
export const callTool = (client, params, options) => client.callTool(params, options);
export const request = (client, message) => client.request(message);
