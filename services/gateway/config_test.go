package gateway_test

import (
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

func TestTheDefaultsAreValid(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.Listen != "127.0.0.1:8080" {
		t.Errorf("it listens on %s, want loopback alone", cfg.Listen)
	}
}

func TestValidateRefusesWhatCanNotWork(t *testing.T) {
	t.Parallel()
	good := gateway.Server{URL: "http://localhost/mcp", Timeout: time.Second}
	for name, change := range map[string]func(*gateway.Config){
		"the zero value":                    func(c *gateway.Config) { *c = gateway.Config{} },
		"no address":                        func(c *gateway.Config) { c.Listen = "" },
		"no folder":                         func(c *gateway.Config) { c.Data = "" },
		"a server without a way to it":      func(c *gateway.Config) { c.Servers["x"] = gateway.Server{Timeout: time.Second} },
		"a server with two ways to it":      func(c *gateway.Config) { s := good; s.Command = []string{"x"}; c.Servers["x"] = s },
		"a server that never has to answer": func(c *gateway.Config) { s := good; s.Timeout = 0; c.Servers["x"] = s },
	} {
		cfg := gateway.DefaultConfig()
		cfg.Servers = map[string]gateway.Server{"good": good}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// S1: a secret that can't be resolved is named by its place, and no server goes
// without it.
func TestFromFileResolvesSecrets(t *testing.T) {
	t.Parallel()
	file := config.Default()
	file.Servers = map[string]config.Server{
		"web":   {HTTP: &config.HTTPServer{URL: "http://localhost/mcp", Headers: map[string]config.Secret{"Authorization": "Bearer ${env:KEY}"}}, Timeout: time.Second},
		"local": {Stdio: &config.StdioServer{Command: []string{"x"}, Per: "shared", Dir: "private", Env: map[string]config.Secret{"KEY": "${env:KEY}"}}, Timeout: time.Second},
	}
	cfg, err := gateway.FromFile(&file, func(name string) (string, bool) { return "s3cret", name == "KEY" })
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Servers["web"].Headers["Authorization"]; got != "Bearer s3cret" {
		t.Errorf("the header is %q", got)
	}
	if s := cfg.Servers["local"]; s.Env["KEY"] != "s3cret" || !s.Shared || s.Dir != "" {
		t.Errorf("%+v", s)
	}
	if _, err := gateway.FromFile(&file, func(string) (string, bool) { return "", false }); err == nil {
		t.Error("a server goes without its secret")
	}
}
