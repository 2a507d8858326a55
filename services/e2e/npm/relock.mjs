// Writes the lock file of a set again after its package.json has changed:
//
//   node relock.mjs <set>
//
// The lock file pins every package by version and digest. It names no registry, so that npm installs from the registry that
// it is configured for. Optional dependencies of packages are left out, as they are when the set is installed. Only the
// optional packages that the set's manifest names are included.
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const set = join(import.meta.dirname, 'sets', process.argv[2]);
const manifest = JSON.parse(readFileSync(join(set, 'package.json'), 'utf8'));
const work = mkdtempSync(join(tmpdir(), 'relock-'));
copyFileSync(join(set, 'package.json'), join(work, 'package.json'));

// The packages of every platform must be pinned, so a set with optional packages is locked without an installation.
// Otherwise the lock file lists what npm has installed.
const how = manifest.optionalDependencies ? ['--package-lock-only'] : ['--no-package-lock', '--omit=optional'];
execFileSync('npm', ['install', '--ignore-scripts', '--no-audit', '--no-fund', ...how], { cwd: work, stdio: 'inherit' });
const lock = join(work, manifest.optionalDependencies ? 'package-lock.json' : 'node_modules/.package-lock.json');

const { name, dependencies, optionalDependencies } = manifest;
const packages = { '': { name, dependencies, optionalDependencies } };
for (const [path, found] of Object.entries(JSON.parse(readFileSync(lock, 'utf8')).packages)) {
  if (path === '') continue;
  const { resolved: _host, optionalDependencies: _left, license: _license, funding: _funding, ...kept } = found;
  packages[path] = kept;
}
const text = JSON.stringify({ name, lockfileVersion: 3, requires: true, packages }, null, 2);
writeFileSync(join(set, 'package-lock.json'), text + '\n');
rmSync(work, { recursive: true });
