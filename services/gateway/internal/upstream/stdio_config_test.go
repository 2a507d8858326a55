//go:build unix

package upstream_test

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func TestNewStdioRefusesWhatCannotRun(t *testing.T) {
	t.Parallel()
	good := upstream.StdioConfig{Name: "fake", Command: []string{"node"}, WorkRoot: "/srv"}
	for name, edit := range map[string]func(*upstream.StdioConfig){
		"no name":           func(c *upstream.StdioConfig) { c.Name = "" },
		"a path as a name":  func(c *upstream.StdioConfig) { c.Name = "../x" },
		"no command":        func(c *upstream.StdioConfig) { c.Command = nil },
		"an empty command":  func(c *upstream.StdioConfig) { c.Command = []string{""} },
		"a relative path":   func(c *upstream.StdioConfig) { c.Command = []string{"./node"} },
		"a NUL byte":        func(c *upstream.StdioConfig) { c.Command = []string{"node", "a\x00b"} },
		"a relative folder": func(c *upstream.StdioConfig) { c.Dir = "x" },
		"no root":           func(c *upstream.StdioConfig) { c.WorkRoot = "" },
		"a broken variable": func(c *upstream.StdioConfig) { c.Env = map[string]string{"A=B": "c"} },
		"a negative time":   func(c *upstream.StdioConfig) { c.IdleTimeout = -1 },
		"too long messages": func(c *upstream.StdioConfig) { c.MaxMessage = upstream.MaxMessage + 1 },
		"another's files":   func(c *upstream.StdioConfig) { c.Dir, c.Remove = "/srv", []string{"lock"} },
		"a file outside":    func(c *upstream.StdioConfig) { c.Remove = []string{"../lock"} },
		"a file's detour":   func(c *upstream.StdioConfig) { c.Remove = []string{"a/../lock"} },
		"an absolute file":  func(c *upstream.StdioConfig) { c.Remove = []string{"/lock"} },
		"the folder itself": func(c *upstream.StdioConfig) { c.Remove = []string{"."} },
		"a negative count":  func(c *upstream.StdioConfig) { c.Recycle = -1 },
		"negative number":   func(c *upstream.StdioConfig) { c.MaxProcesses = -1 },
	} {
		cfg := good
		edit(&cfg)
		if _, err := upstream.NewStdio(cfg, upstream.StdioDeps{Log: newLog(), Room: hall(), Sandbox: sandbox.Nothing()}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := upstream.NewStdio(good, upstream.StdioDeps{}); err == nil {
		t.Error("no log was accepted")
	}
	if _, err := upstream.NewStdio(good, upstream.StdioDeps{Log: newLog()}); err == nil {
		t.Error("no room was accepted")
	}
	srv, err := upstream.NewStdio(good, upstream.StdioDeps{Log: newLog(), Room: hall(), Sandbox: sandbox.Nothing()})
	if err != nil {
		t.Fatal(err)
	}
	if srv.Transport() != "stdio" {
		t.Errorf("the transport is %q", srv.Transport())
	}
}
