//go:build unix

package stdio_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// agentOf returns an agent that works for a person.
func agentOf(person, id string) *identityv1.Principal {
	return &identityv1.Principal{
		Tenant: "default", Subject: "agent:default/" + id, Owner: person, Chain: []*identityv1.Principal{{Tenant: "default", Subject: "bot-of-" + person, Owner: person}},
	}
}

// unknownAgents makes the request for the list of agents fail. The gateway then doesn't know which agents have ended,
// and removes no directory because of the limit.
func unknownAgents(d *stdio.Deps) {
	d.Agents = func(context.Context, string) (map[string]bool, error) { return nil, errors.New("wasmagent is down") }
}

// agentFolders contains the private directories of one server's agents.
type agentFolders struct {
	root string
	disk int64
}

func (f agentFolders) edit(c *stdio.Config) {
	c.WorkRoot, c.Limits.Disk, c.Limits.Tasks, c.Limits.Memory = f.root, f.disk, 512, 2<<30
}

// leave lets an agent use the server once. This leaves behind a directory of the given size. leave then changes the
// directory's times, so that its last use seems to be as long ago as the parameter since says.
func (f agentFolders) leave(t *testing.T, agent *identityv1.Principal, size int, since time.Duration) (dir string) {
	t.Helper()
	r := newRigWith(t, "good", f.edit, unknownAgents)
	hello := hello(0)
	hello.Room = r.all.Open(&limits.Owner{Accounts: principal.AccountsOf(agent), Server: "fake"})
	conn, _, err := r.Open(t.Context(), principal.Of(agent), hello)
	put(t, err)
	s := session{t, conn}
	dir = s.call(1, "info", nil)["dir"]
	put(t, conn.Close(t.Context()))
	put(t, r.Close())
	put(t, os.WriteFile(filepath.Join(dir, "state"), []byte(strings.Repeat("x", size)), 0o600))
	restFor(t, dir, since)
	return dir
}

// The directories of one person's ended agents share a limit, and the oldest directories are removed first. The
// directories of agents that have not ended and of other people's agents do not count, however old they are.
func TestFolders_OfOnePersonsEndedAgentsAreLimited(t *testing.T) {
	t.Parallel()
	f := agentFolders{t.TempDir(), 1 << 20} // two such directories fit into the limit
	const size = 900 << 10
	alive := f.leave(t, agentOf("olga", "alive"), size, 100*time.Hour)
	others := f.leave(t, agentOf("ben", "ended"), size, 100*time.Hour)
	var ended []string
	for i := range 4 {
		ended = append(ended, f.leave(t, agentOf("olga", fmt.Sprint("ended-", i)), size, time.Duration(i+2)*time.Hour))
	}
	asked := 0
	agents := func(_ context.Context, tenant string) (map[string]bool, error) {
		asked++
		return map[string]bool{"agent:" + tenant + "/alive": true}, nil
	}
	newRigWith(t, "good", f.edit, func(d *stdio.Deps) { d.Agents = agents }).open(t, ana)
	eventually.Holds(t, "the oldest folders are removed", func() bool {
		return !exists(t, ended[2]) && !exists(t, ended[3]) && !exists(t, ended[3]+".agent") && !exists(t, ended[2]+".ended") && !exists(t, ended[3]+".ended")
	})
	for what, dir := range map[string]string{"the newest ended agent": ended[0], "the second ended agent": ended[1], "an agent that has not ended": alive, "another person's agent": others} {
		if !exists(t, filepath.Join(dir, "state")) {
			t.Errorf("the folder of %s was removed", what)
		}
	}
	if asked != 1 {
		t.Errorf("the agents were requested %d times, want once for the only person above the limit", asked)
	}
}

// The number of directories of one person's ended agents is also limited, even if they are small.
func TestFolders_OfEndedAgentsAreLimitedInNumber(t *testing.T) {
	t.Parallel()
	f := agentFolders{t.TempDir(), 2 << 30}
	first := f.leave(t, agentOf("olga", "0"), 1, time.Hour)
	mark, err := os.ReadFile(first + ".agent")
	put(t, err)
	const more = 205
	for i := range more {
		dir := filepath.Join(filepath.Dir(first), fmt.Sprint("copy", i))
		put(t, os.Mkdir(dir, 0o700))
		put(t, os.WriteFile(dir+".agent", mark, 0o600))
		restFor(t, dir, time.Duration(i+2)*time.Hour)
	}
	newRig(t, "good", f.edit).open(t, ana)
	left := func() int {
		all, err := filepath.Glob(filepath.Join(filepath.Dir(first), "*.agent"))
		put(t, err)
		return len(all)
	}
	eventually.Holds(t, "the oldest folders are removed", func() bool { return left() == 200 })
	for i, want := range map[int]bool{0: true, 198: true, 199: false, more - 1: false} {
		if exists(t, filepath.Join(filepath.Dir(first), fmt.Sprint("copy", i, ".agent"))) != want {
			t.Errorf("folder %d exists: %v, want %v", i, !want, want)
		}
	}
}

// While the gateway cannot find out which agents have ended, it does not enforce the limit on their directories.
func TestFolders_AreKeptWhileTheAgentsAreUnknown(t *testing.T) {
	t.Parallel()
	f := agentFolders{t.TempDir(), 1 << 20}
	var dirs []string
	for i := range 4 {
		dirs = append(dirs, f.leave(t, agentOf("olga", fmt.Sprint(i)), 900<<10, time.Duration(i+2)*time.Hour))
	}
	r := newRigWith(t, "good", f.edit, unknownAgents)
	r.open(t, ana)
	eventually.Holds(t, "the log says why", func() bool { return strings.Contains(r.log.String(), "wasmagent is down") })
	for i, dir := range dirs {
		if !exists(t, filepath.Join(dir, "state")) {
			t.Errorf("folder %d was removed", i)
		}
	}
}
