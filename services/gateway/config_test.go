package gateway_test

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/gateway"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/sandbox"
)

func TestDefaultConfig_IsValid(t *testing.T) {
	t.Parallel()
	cfg := gateway.DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.Listen != "127.0.0.1:8080" {
		t.Errorf("it listens on %s, want loopback only", cfg.Listen)
	}
}

func TestValidate_RefusesInvalidConfigurations(t *testing.T) {
	t.Parallel()
	good := gateway.Server{URL: "http://localhost/mcp", Timeout: time.Second}
	for name, change := range map[string]func(*gateway.Config){
		"the zero value":                         func(c *gateway.Config) { *c = gateway.Config{} },
		"no address":                             func(c *gateway.Config) { c.Listen = "" },
		"no folder":                              func(c *gateway.Config) { c.Data = "" },
		"a server without a way to it":           func(c *gateway.Config) { c.Servers["x"] = gateway.Server{Timeout: time.Second} },
		"a server with two ways to it":           func(c *gateway.Config) { s := good; s.Command = []string{"x"}; c.Servers["x"] = s },
		"a server that hides errors in some way": func(c *gateway.Config) { s := good; s.Unwrap = "x"; c.Servers["x"] = s },
		"a server that never has to answer":      func(c *gateway.Config) { s := good; s.Timeout = 0; c.Servers["x"] = s },
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

// Case S1. If a secret cannot be resolved, the error contains the configuration key. A server whose secret is missing
// is not used.
func TestFromFile_ResolvesSecrets(t *testing.T) {
	t.Parallel()
	file := config.Default()
	file.Servers = map[string]config.Server{
		"web":   {HTTP: &config.HTTPServer{URL: "http://localhost/mcp", Headers: map[string]config.Secret{"Authorization": "Bearer ${env:KEY}"}}, Timeout: time.Second},
		"local": {Stdio: &config.StdioServer{Command: []string{"x"}, Per: "shared", Dir: "private", Env: map[string]config.Secret{"KEY": "${env:KEY}", "REGION": "eu-central-1"}}, Timeout: time.Second},
	}
	cfg, err := gateway.FromFile(&file, func(name string) (string, bool) { return "s3cret", name == "KEY" })
	if err != nil {
		t.Fatal(err)
	}
	file.Servers["keyed"] = config.Server{HTTP: &config.HTTPServer{URL: "http://localhost/mcp?api_key=canary-1"}, Timeout: time.Second}
	if keyed, err := gateway.FromFile(&file, func(string) (string, bool) { return "s3cret", true }); err != nil || !slices.Equal(keyed.Servers["keyed"].Secrets, []string{"canary-1"}) {
		t.Errorf("a key in a URL is not a secret: %+v, %v", keyed.Servers["keyed"], err)
	}
	secrets := []string{"s3cret"} // the text around a reference is not secret
	if s := cfg.Servers["web"]; s.Headers["Authorization"] != "Bearer s3cret" || !slices.Equal(s.Secrets, secrets) {
		t.Errorf("%+v", s)
	}
	if s := cfg.Servers["local"]; s.Env["KEY"] != "s3cret" || !slices.Equal(s.Secrets, secrets) || !s.Shared || s.Dir != "" {
		t.Errorf("%+v", s)
	}
	if _, err := gateway.FromFile(&file, func(string) (string, bool) { return "", false }); err == nil {
		t.Error("a server is used without its secret")
	}
}

func TestFromFile_NamesEveryReferenceThatCannotBeResolved(t *testing.T) {
	t.Parallel()
	file := config.Default()
	file.Servers = map[string]config.Server{
		"a": {HTTP: &config.HTTPServer{URL: "http://h/mcp", Headers: map[string]config.Secret{"X-One": "${env:ONE}", "X-Two": "${env:TWO}-${plain:THREE}"}}},
		"b": {Stdio: &config.StdioServer{Command: []string{"x"}, Env: map[string]config.Secret{"FOUR": "${file:/none/such}", "FIVE": "${vault:5}", "GOOD": "${plain:HOME}", "KEY": "${env:KEY}"}}},
	}
	cfg, err := gateway.FromFile(&file, func(name string) (string, bool) { return "value of " + name, name == "HOME" || name == "KEY" })
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"servers.a: X-One: the environment variable ONE is not set", "servers.a: X-Two: the environment variable TWO is not set", "servers.a: X-Two: the environment variable THREE is not set",
		"servers.b: FOUR: read the secret: open /none/such", "servers.b: FIVE: ${vault:5}: \"5\" does not name a field of a secret",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q:\n%v", want, err)
		}
	}
	if b := cfg.Servers["b"]; slices.Contains(b.SecretEnv, "GOOD") || !slices.Contains(b.SecretEnv, "FOUR") {
		t.Errorf("variables with a secret are %q", b.SecretEnv)
	}
	if b := cfg.Servers["b"]; b.Env["GOOD"] != "value of HOME" || !slices.Equal(b.Secrets, []string{"value of KEY"}) {
		t.Errorf("the value that is not secret is %q, and secrets are %q", b.Env["GOOD"], b.Secrets)
	}
}

func TestFromFile_AHookIsAServerOfTheClient(t *testing.T) {
	t.Parallel()
	file, err := config.Parse("sluice.yaml", []byte("policies: [policies]\nhooks: [{client: codex}]\n"), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := gateway.FromFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s := cfg.Servers["host-codex"]; len(cfg.Servers) != 1 || s.Host != "codex" || s.URL != "" || len(s.Command) > 0 {
		t.Errorf("the servers are %+v", cfg.Servers)
	}
}

// Every setting that the gateway reads changes only its own field of the configuration. Every field has a setting.
func TestFromFile_ReadsEverySetting(t *testing.T) {
	t.Parallel()
	web := func(f *config.File) *config.HTTPServer { return f.Servers["web"].HTTP }
	local := func(f *config.File) *config.StdioServer { return f.Servers["local"].Stdio }
	methods := func(f *config.File) *config.GRPCServer { return f.Servers["methods"].GRPC }
	tests := []struct {
		field  string // a field of Config, or NAME.FIELD for a field of a Server
		change func(*config.File)
		want   any
	}{
		{"Listen", func(f *config.File) { f.Listen = "127.0.0.1:1" }, "127.0.0.1:1"},
		{"CertFile", func(f *config.File) { f.ListenTLS.Cert = "/mcp.pem" }, "/mcp.pem"},
		{"KeyFile", func(f *config.File) { f.ListenTLS.Key = "/mcp-key.pem" }, "/mcp-key.pem"},
		{"Proxies", func(f *config.File) { f.BehindProxy = []string{"10.0.0.0/8"} }, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		{"Hosts", func(f *config.File) { f.Hosts = []string{"mcp.example"} }, []string{"mcp.example"}},
		{"Origins", func(f *config.File) { f.Origins = []string{"https://x.example"} }, []string{"https://x.example"}},
		{"TrustParent", func(f *config.File) { f.Telemetry.TrustParent = true }, true},
		{"Data", func(f *config.File) { f.Data = "/elsewhere" }, "/elsewhere"},
		{"SyncAlways", func(f *config.File) { f.Journal.Sync = "always" }, true},
		{"JournalBytes", func(f *config.File) { f.Journal.CallsMiB = 64 }, int64(64 << 20)},
		{"JournalShare", func(f *config.File) { f.Journal.Share = 0.1 }, 0.1},
		{"ArgumentsBytes", func(f *config.File) { f.Journal.Arguments.MiB = 64 }, int64(64 << 20)},
		{"ArgumentsAge", func(f *config.File) { f.Journal.Arguments.Retention = time.Hour }, time.Hour},
		{"web.RecordArguments", func(f *config.File) { s := f.Servers["web"]; s.Record.Arguments = "redacted"; f.Servers["web"] = s }, true},
		{"web.SignsIn", func(f *config.File) {
			s := f.Servers["web"]
			s.Credentials = new(config.Credentials)
			f.Servers["web"] = s
		}, true},
		{"web.ForEachPerson", func(f *config.File) {
			s := f.Servers["web"]
			s.Credentials = &config.Credentials{As: config.AsPerson}
			f.Servers["web"] = s
		}, true},
		{"KeepDecisions", func(f *config.File) { f.Decisions.Keep = false }, false},
		{"SessionIdle", func(f *config.File) { f.Session.Idle = time.Hour }, time.Hour},
		{"MaxSessions", func(f *config.File) { f.Session.MaxPerPrincipal = 7 }, 7},
		{"Hold", func(f *config.File) { f.Approvals.Hold = time.Minute }, time.Minute},
		{"MaxPending", func(f *config.File) { f.Approvals.MaxPending = 7 }, 7},
		{"Execute", func(f *config.File) { f.Approvals.Execute = time.Hour }, time.Hour},
		{
			"Clients", func(f *config.File) {
				f.Approvals.Clients = []config.ApprovalClient{{Name: "x*", Hold: new(time.Minute)}}
			}, []approvals.ClientHold{{Name: "x*", Hold: time.Minute}},
		},
		{"web.URL", func(f *config.File) { web(f).URL = "http://localhost/2" }, "http://localhost/2"},
		{"web.Headers", func(f *config.File) { web(f).Headers = map[string]config.Secret{"A": "b"} }, map[string]string{"A": "b"}},
		{"web.Proxy", func(f *config.File) { web(f).Proxy = "http://proxy.example:3128" }, "http://proxy.example:3128"},
		{"web.Timeout", func(f *config.File) { s := f.Servers["web"]; s.Timeout = time.Hour; f.Servers["web"] = s }, time.Hour},
		{"web.MaxTimeout", func(f *config.File) { s := f.Servers["web"]; s.MaxTimeout = time.Hour; f.Servers["web"] = s }, time.Hour},
		{"web.Unwrap", func(f *config.File) { s := f.Servers["web"]; s.Unwrap = "claude-flow"; f.Servers["web"] = s }, "claude-flow"},
		{"methods.Target", func(f *config.File) { methods(f).Target = "y.example:443" }, "y.example:443"},
		{"methods.CA", func(f *config.File) { methods(f).CA = "/ca.pem" }, "/ca.pem"},
		{"methods.Plaintext", func(f *config.File) { methods(f).Plaintext = true }, true},
		{"methods.Headers", func(f *config.File) { methods(f).Headers = map[string]config.Secret{"a": "b"} }, map[string]string{"a": "b"}},
		{"local.Command", func(f *config.File) { local(f).Command = []string{"y", "-v"} }, []string{"y", "-v"}},
		{"local.Env", func(f *config.File) { local(f).Env = map[string]config.Secret{"A": "b"} }, map[string]string{"A": "b"}},
		{"local.Shared", func(f *config.File) { local(f).Per = "shared" }, true},
		{"local.Recycle", func(f *config.File) { local(f).Recycle = 7 }, 7},
		{"local.Start", func(f *config.File) { local(f).Start = time.Hour }, time.Hour},
		{"local.InstallEachStart", func(f *config.File) { local(f).Install = "each_start" }, true},
		{"local.Processes", func(f *config.File) { local(f).Processes = 9 }, 9},
		{
			"local.Limits", func(f *config.File) {
				local(f).Limits = config.StdioLimits{Tasks: 40, Memory: 64 << 20, Disk: 32 << 20}
			},
			stdio.Limits{Tasks: 40, Memory: 64 << 20, Disk: 32 << 20},
		},
		{"local.Remove", func(f *config.File) { local(f).Remove = []string{"lock"} }, []string{"lock"}},
		{"local.Dir", func(f *config.File) { local(f).Dir = "/srv" }, "/srv"},
		{
			"local.Sandbox", func(f *config.File) {
				local(f).Sandbox = config.StdioSandbox{Mode: "auto", Read: []string{"/a"}, Write: []string{"/b"}, Home: []string{".kube"}, Network: new(false)}
			},
			gateway.Sandbox{Mode: sandbox.Auto, Read: []string{"/a"}, Write: []string{"/b"}, Home: []string{".kube"}, NoNetwork: true},
		},
		{"StepUpClients", func(f *config.File) { f.Auth.ScopeStepUp = []string{"cli"} }, []string{"cli"}},
		{"Resource", func(f *config.File) { f.PublicURL = "https://mcp.example.com" }, "https://mcp.example.com/mcp"},
		{"SecretPrograms", func(f *config.File) {
			f.Secrets.Commands = map[string]config.SecretCommand{"x": {Command: []string{"/bin/sh", "/none"}}}
		}, []string{"/bin/sh"}},
		{"Documents", func(f *config.File) { f.Policies = []string{"/policies"} }, []string{"/policies"}},
	}
	untested := map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[gateway.Config](), reflect.TypeFor[gateway.Server]()} {
		for f := range of.Fields() {
			untested[f.Name] = true
		}
	}
	delete(untested, "Version")   // set by the program
	delete(untested, "Servers")   // the fields of Server are tested instead
	delete(untested, "Embedded")  // set by the program
	delete(untested, "ProxyHint") // set from the environment
	delete(untested, "Secrets")   // set from references, which no tested setting contains
	delete(untested, "SecretEnv") // set from references
	delete(untested, "Host")      // set from hooks, which add servers when the file is parsed

	// These fields are set only by references to the keychain, which this test does not use.
	for _, name := range []string{"KeychainEnv", "KeychainEntries", "Complete"} {
		delete(untested, name)
	}
	before := settings(t, func(*config.File) {})
	for _, tt := range tests {
		after := settings(t, tt.change)
		if diff := cmp.Diff(tt.want, after[tt.field], cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.field, diff)
		}
		if cmp.Equal(before[tt.field], after[tt.field], cmpopts.EquateComparable(netip.Prefix{})) {
			t.Errorf("%s is the default's already", tt.field)
		}
		delete(after, tt.field)
		rest := maps.Clone(before)
		switch tt.field {
		case "KeyFile": // stdio servers must not read this file
			after["Secrets"] = before["Secrets"]
		case "Resource": // requests name its host
			after["Hosts"] = before["Hosts"]
		case "web.ForEachPerson": // implies SignsIn
			after["web.SignsIn"] = before["web.SignsIn"]
		}
		delete(rest, tt.field)
		if diff := cmp.Diff(rest, after, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("%s changes more than itself:\n%s", tt.field, diff)
		}
		delete(untested, tt.field[strings.Index(tt.field, ".")+1:])
	}
	for field := range untested {
		t.Errorf("this test has no setting that changes %s", field)
	}
}

// settings reads a configuration file with one change. It returns the values of all fields of Config and of each
// Server, by the names of the fields.
func settings(t *testing.T, change func(*config.File)) map[string]any {
	t.Helper()
	file := config.Default()
	file.Servers = map[string]config.Server{
		"web":   {HTTP: &config.HTTPServer{URL: "http://localhost/mcp"}, Timeout: time.Second},
		"local": {Stdio: &config.StdioServer{Command: []string{"x"}, Per: "principal", Dir: "private"}, Timeout: time.Second},

		"methods": {GRPC: &config.GRPCServer{Target: "tools:1"}, Timeout: time.Second},
	}
	change(&file)
	cfg, err := gateway.FromFile(&file, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	add := func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			out[prefix+v.Type().Field(i).Name] = v.Field(i).Interface()
		}
	}
	add("", reflect.ValueOf(cfg))
	delete(out, "Servers")
	for name, server := range cfg.Servers {
		add(name+".", reflect.ValueOf(server))
	}
	return out
}
