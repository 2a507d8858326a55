//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// installs is the source of a program that replaces npm. It records each run in the file TALLY, and installs a package
// that contains this test binary as its program.
const installs = `#!/bin/sh
echo run >> TALLY
sleep 0.2
mkdir -p node_modules/.bin node_modules/server
echo '{"dependencies":{"server":"1"}}' > package.json
echo '{"name":"server","version":"1.0.'$(wc -l < TALLY)'","bin":"cli"}' > node_modules/server/package.json
printf '#!/bin/sh\nexec "SELF" "$@"\n' > node_modules/server/cli
chmod +x node_modules/server/cli
ln -s ../server/cli node_modules/.bin/server
`

// installing is a server whose package is installed by the program `installs` instead of npm.
type installing struct {
	*rig
	folder, tally string
}

func newInstalling(t *testing.T, npm, spec string, edit func(*stdio.Config)) installing {
	t.Helper()
	return newInstallingWith(t, npm, spec, edit, func(*stdio.Deps) {})
}

// newInstallingWith is like [newInstalling], and also changes the dependencies.
func newInstallingWith(t *testing.T, npm, spec string, edit func(*stdio.Config), editDeps func(*stdio.Deps)) installing {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	in := installing{folder: filepath.Join(dir, "programs/fake"), tally: filepath.Join(dir, "tally")}
	file := filepath.Join(dir, "npm")
	if err := os.WriteFile(file, []byte(strings.NewReplacer("TALLY", in.tally, "SELF", self).Replace(npm)), 0o700); err != nil {
		t.Fatal(err)
	}
	in.rig = newRigWith(t, "good", func(c *stdio.Config) {
		c.Command = []string{"npx", "-y", spec}
		c.Install = &stdio.Install{Command: npx.Command{Package: spec}, Folder: npx.Folder(in.folder), Digest: "d", NPM: file, Env: map[string]string{}}
		if edit != nil {
			edit(c)
		}
	}, editDeps)
	return in
}

func (in installing) runs(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile(in.tally)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(raw), "\n")
}

func (in installing) folders() []string {
	found, _ := filepath.Glob(filepath.Join(in.folder, "*"))
	return found
}

func TestInstall_RunsOnceForManyPrincipals(t *testing.T) {
	t.Parallel()
	in := newInstalling(t, installs, "server@1.0.0", nil)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() { in.open(t, principal.Key{Tenant: "default", Subject: fmt.Sprintf("p%d", i)}) })
	}
	all.Wait()
	if n := in.runs(t); n != 1 || len(in.folders()) != 1 {
		t.Errorf("npm ran %d times; there are %s", n, in.folders())
	}
}

func TestInstall_FailureIsReportedToAllAndNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	in := newInstalling(t, `#!/bin/sh
echo run >> TALLY
sleep 0.2
mkdir -p node_modules/half
echo "npm error code E404
npm error 404 Not Found - GET http://127.0.0.1/server
npm error 404
npm error A complete log of this run can be found in: /x" >&2
exit 1
`, "https://me:pw@x.example/server.tgz?key=1", nil)
	var all sync.WaitGroup
	for range 2 { // at the same time, and after the failure
		for i := range 4 {
			all.Go(func() {
				_, _, err := in.Open(t.Context(), principal.Key{Tenant: "default", Subject: fmt.Sprintf("p%d", i)}, hello(1))
				cause := upstream.CauseOf(err)
				if !errors.Is(err, upstream.ErrNeverSent) || cause == nil || cause.RetryAfter <= 0 {
					t.Errorf("the error is %v", err)
					return
				}
				if want := "the installation of https://x.example/server.tgz for server fake failed"; cause.Text != want {
					t.Errorf("callers get %q", cause.Text)
				}
				if want := "code E404; 404 Not Found - GET http://127.0.0.1/server"; cause.Detail != want {
					t.Errorf("operators get %q", cause.Detail)
				}
			})
		}
		all.Wait()
	}
	if n := in.runs(t); n != 1 || len(in.folders()) != 0 {
		t.Errorf("npm ran %d times; left: %s", n, in.folders())
	}
}

func TestInstall_EndsWithTheGateway(t *testing.T) {
	t.Parallel()
	in := newInstalling(t, "#!/bin/sh\necho $$ >> TALLY\nsleep 1000\n", "server", nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, _, err := in.Open(ctx, ana, hello(1))
		failed <- err
	}()
	eventually.Holds(t, "npm runs", func() bool { raw, _ := os.ReadFile(in.tally); return strings.HasSuffix(string(raw), "\n") })
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := <-failed; !errors.Is(err, upstream.ErrNeverSent) {
		t.Errorf("the caller gets %v", err)
	}
	raw, err := os.ReadFile(in.tally)
	if err != nil || isAlive(strings.TrimSpace(string(raw))) || len(in.folders()) != 0 {
		t.Errorf("npm runs still, or has left %s (%v)", in.folders(), err)
	}
}

func TestInstall_NewerVersionDoesNotAffectRunningProcesses(t *testing.T) {
	t.Parallel()
	in := newInstalling(t, installs, "server@latest", func(c *stdio.Config) { c.IdleTimeout = time.Millisecond })
	first := in.open(t, ana)
	older := in.folders()
	age(t, older)
	in.open(t, ben)
	if n := in.runs(t); n != 2 || len(in.folders()) != 2 {
		t.Errorf("npm ran %d times; there are %s", n, in.folders())
	}
	first.call(2, "info", nil)
	if err := first.conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	eventually.Holds(t, "the older version goes with its last process", func() bool {
		_, err := os.Stat(older[0])
		return os.IsNotExist(err)
	})
	if len(in.folders()) != 1 {
		t.Errorf("there are %s", in.folders())
	}
}

func TestInstall_ExactVersionIsNotRenewed(t *testing.T) {
	t.Parallel()
	in := newInstalling(t, installs, "server@1.0.0", nil)
	in.open(t, ana)
	age(t, in.folders())
	in.open(t, ben)
	if n := in.runs(t); n != 1 {
		t.Errorf("npm ran %d times", n)
	}
	if err := os.RemoveAll(in.folders()[0]); err != nil { // an operator does this to have the package installed again
		t.Fatal(err)
	}
	in.open(t, principal.Key{Tenant: "default", Subject: "cleo"})
	if n := in.runs(t); n != 2 {
		t.Errorf("after its folder was removed npm ran %d times", n)
	}
}

// age makes installations look as if they were more than a day old.
func age(t *testing.T, dirs []string) {
	t.Helper()
	old := time.Now().Add(-25 * time.Hour)
	for _, dir := range dirs {
		if err := os.Chtimes(filepath.Join(dir, "program.json"), old, old); err != nil {
			t.Fatal(err)
		}
	}
}

// heldInstall is the source of a program that replaces npm, and waits for the file TALLY.go before it installs anything.
const heldInstall = `#!/bin/sh
echo begun > TALLY.begun
while [ ! -e TALLY.go ]; do sleep 0.02; done
` + installs

// At most two packages are installed at the same time, in the order in which their servers were needed. Calls to the
// servers of other packages are refused, and the error says that the server's package is installed later.
func TestInstall_TwoPackagesAtATimeInOrder(t *testing.T) {
	t.Parallel()
	shared := new(stdio.Installs)
	var all sync.WaitGroup
	defer all.Wait()
	var servers []installing
	begun := func(in installing) bool { return exists(t, in.tally+".begun") }
	waits := func(in installing) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, _, err := in.Open(ctx, ben, hello(1))
		cause := upstream.CauseOf(err)
		return cause != nil && cause.Text == "the server is still starting: its package is installed after those of other servers" && cause.RetryAfter > 0
	}
	for i := range 5 {
		in := newInstallingWith(t, heldInstall, fmt.Sprintf("server%d@1.0.0", i), nil, func(d *stdio.Deps) { d.Installs = shared })
		servers = append(servers, in)
		all.Go(func() { in.open(t, ana) })
		eventually.Holds(t, "the installation has begun, or has its place", func() bool { return i < 2 && begun(in) || i >= 2 && waits(in) })
	}
	for next := 2; next < 5; next++ {
		for i, in := range servers {
			if i < next != begun(in) || i >= next != waits(in) {
				t.Errorf("after %d installations, installation %d has begun: %v, and waits: %v", next-2, i, begun(in), waits(in))
			}
		}
		put(t, os.WriteFile(servers[next-2].tally+".go", nil, 0o600))
		eventually.Holds(t, "the next installation begins", func() bool { return begun(servers[next]) })
	}
	for _, in := range servers {
		put(t, os.WriteFile(in.tally+".go", nil, 0o600))
	}
}
