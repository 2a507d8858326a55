// Writes the lock file of one set anew, after its package.json has changed:
//
//   node relock.mjs <set>
//
// It pins every package by version and digest. It names no registry, so that everybody installs from
// the one that their npm is set up for. Packages that are optional to a package are left out, as they
// are when the set is installed; only optional packages that the set itself asks for stay.
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const set = join(import.meta.dirname, 'sets', process.argv[2]);
const manifest = JSON.parse(readFileSync(join(set, 'package.json'), 'utf8'));
const work = mkdtempSync(join(tmpdir(), 'relock-'));
copyFileSync(join(set, 'package.json'), join(work, 'package.json'));

// Every platform's package must be pinned, so what the set itself calls optional is locked unseen.
// Otherwise the lock is made of what npm really installed.
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
