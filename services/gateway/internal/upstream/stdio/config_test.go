//go:build unix

package stdio_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/upstreamtest"
	"github.com/sluice-mesh/sluice/services/internal/proclimit"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func TestNew_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	good := stdio.Config{Name: "fake", Command: []string{"node"}, WorkRoot: "/srv"}
	for name, edit := range map[string]func(*stdio.Config){
		"no name":           func(c *stdio.Config) { c.Name = "" },
		"a path as a name":  func(c *stdio.Config) { c.Name = "../x" },
		"no command":        func(c *stdio.Config) { c.Command = nil },
		"an empty command":  func(c *stdio.Config) { c.Command = []string{""} },
		"a relative path":   func(c *stdio.Config) { c.Command = []string{"./node"} },
		"a NUL byte":        func(c *stdio.Config) { c.Command = []string{"node", "a\x00b"} },
		"a relative folder": func(c *stdio.Config) { c.Dir = "x" },
		"no root":           func(c *stdio.Config) { c.WorkRoot = "" },
		"a broken variable": func(c *stdio.Config) { c.Env = map[string]string{"A=B": "c"} },
		"a negative time":   func(c *stdio.Config) { c.IdleTimeout = -1 },
		"too long messages": func(c *stdio.Config) { c.MaxMessage = upstream.MaxMessage + 1 },
		"another's files":   func(c *stdio.Config) { c.Dir, c.Remove = "/srv", []string{"lock"} },
		"a file outside":    func(c *stdio.Config) { c.Remove = []string{"../lock"} },
		"a file's detour":   func(c *stdio.Config) { c.Remove = []string{"a/../lock"} },
		"an absolute file":  func(c *stdio.Config) { c.Remove = []string{"/lock"} },
		"the folder itself": func(c *stdio.Config) { c.Remove = []string{"."} },
		"a negative count":  func(c *stdio.Config) { c.Recycle = -1 },
		"negative number":   func(c *stdio.Config) { c.MaxProcesses = -1 },
	} {
		cfg := good
		edit(&cfg)
		if _, err := stdio.New(cfg, stdio.Deps{Log: newLog(), Room: upstreamtest.Answers(), Sandbox: sandbox.Nothing(), Limiter: proclimit.NewWatching(), Agents: upstreamtest.NoAgents}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := stdio.New(good, stdio.Deps{}); err == nil {
		t.Error("no log was accepted")
	}
	if _, err := stdio.New(good, stdio.Deps{Log: newLog()}); err == nil {
		t.Error("a missing memory budget was accepted")
	}
	srv, err := stdio.New(good, stdio.Deps{Log: newLog(), Room: upstreamtest.Answers(), Sandbox: sandbox.Nothing(), Limiter: proclimit.NewWatching(), Agents: upstreamtest.NoAgents})
	if err != nil {
		t.Fatal(err)
	}
	if srv.Kind() != "stdio" {
		t.Errorf("the transport is %q", srv.Kind())
	}
}
