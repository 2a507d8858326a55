package packages_test

// server is an MCP server in JavaScript. Its only tool reports the server's directory, the paths to which the server
// can write (its program files and others), and what the package's install script has recorded.
const server = `#!/usr/bin/env node
const fs = require('fs'), path = require('path'), readline = require('readline');
const here = path.dirname(__filename);
const tries = {
  overwrite: () => fs.appendFileSync(__filename, '\n'),
  plant: () => { fs.writeFileSync(path.join(here, 'planted.js'), ''); fs.rmSync(path.join(here, 'planted.js')); },
  module: () => { fs.mkdirSync(path.join(here, 'node_modules')); fs.rmdirSync(path.join(here, 'node_modules')); },
  above: () => { const up = path.join(here, '../../..'); fs.writeFileSync(path.join(up, 'planted'), ''); fs.rmSync(path.join(up, 'planted')); },
  bin: () => { const bin = process.argv[1]; fs.renameSync(bin, bin + '.old'); fs.renameSync(bin + '.old', bin); },
  chmod: () => fs.chmodSync(__filename, 0o777),
  replace: () => { fs.renameSync(here, here + '.old'); fs.renameSync(here + '.old', here); },
  other: () => fs.readdirSync(process.env.OTHER),
  own: () => { fs.writeFileSync('note', ''); fs.rmSync('note'); },
};
const succeeds = f => { try { f(); return true; } catch { return false; } };
const read = file => { try { return JSON.parse(fs.readFileSync(path.join(here, file), 'utf8')); } catch { return null; } };
const look = () => ({
  program: __filename, version: require('./package.json').version, args: process.argv.slice(2), cwd: process.cwd(), key: process.env.API_KEY, pid: process.pid,
  wrote: Object.keys(tries).filter(name => succeeds(tries[name])), install: read('install.json'),
});
readline.createInterface({ input: process.stdin }).on('line', line => {
  const { id, method } = JSON.parse(line);
  const say = result => console.log(JSON.stringify({ jsonrpc: '2.0', id, result }));
  if (method === 'initialize') say({ protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'acme', version: '1' } });
  else if (method === 'tools/list') say({ tools: [{ name: 'look', description: 'Reads where it runs.', inputSchema: { type: 'object' } }] });
  else if (method === 'tools/call') say({ content: [{ type: 'text', text: 'got:' + JSON.stringify(look()) + ':end' }] });
});
`

// installScript is the install script of a package. It records its environment and the places to which it can write.
const installScript = `
const fs = require('fs'), os = require('os'), path = require('path'), http = require('http');
const tries = {
  home: () => { const f = path.join(os.userInfo().homedir, 'sluice-e2e-planted'); fs.writeFileSync(f, ''); fs.rmSync(f); },
  tmp: () => { fs.writeFileSync('/tmp/sluice-e2e-planted', ''); fs.rmSync('/tmp/sluice-e2e-planted'); },
  shm: () => { fs.writeFileSync('/dev/shm/sluice-e2e-planted', ''); fs.rmSync('/dev/shm/sluice-e2e-planted'); },
  root: () => { fs.mkdirSync('/sluice-e2e-planted'); fs.rmdirSync('/sluice-e2e-planted'); },
  data: () => fs.readdirSync(path.join(__dirname, '../../../../../../../..')).forEach(name => { if (name !== 'gateway') throw name; }),
  journal: () => fs.readdirSync(path.join(__dirname, '../../../../../../../../gateway/journal')),
  own: () => fs.writeFileSync(path.join(__dirname, 'note'), ''),
  temporary: () => fs.writeFileSync(path.join(os.tmpdir(), 'note'), ''),
  homeOfItsOwn: () => fs.writeFileSync(path.join(os.homedir(), 'note'), ''),
};
const succeeds = f => { try { f(); return true; } catch { return false; } };
const found = { wrote: Object.keys(tries).filter(name => succeeds(tries[name])), env: JSON.stringify(process.env), network: false };
const done = () => fs.writeFileSync(path.join(__dirname, 'install.json'), JSON.stringify(found));
const asked = http.get(process.env.npm_config_registry, res => { found.network = true; res.destroy(); done(); });
asked.on('error', done);
asked.setTimeout(5000, () => asked.destroy());
`
