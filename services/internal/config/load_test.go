package config_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func noEnv(string) (string, bool) { return "", false }

func env(vars map[string]string) config.Env {
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

// write writes a configuration to a file and returns the file's path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// everything is a configuration with every key of this version.
const everything = `listen: 0.0.0.0:8080
listen_tls: {cert: mcp.pem, key: mcp-key.pem}
behind_proxy: [10.0.0.7, "10.1.0.0/16", "fd00::/8"]
grpc: 127.0.0.1:9999
data: /var/lib/sluice
hosts: [mcp.example.com, 10.0.0.1, "fe80::1", sluice_gateway]
origins: ["https://app.example.com", "http://localhost:3000"]
auth:
  tokens:
    - {name: laptop, token: "${env:TOKEN}", agent: dev, owner: ana, groups: [developers, ops], role: agent}
    - {name: ops@1, sha256: "00", tenant: acme, subject: ben, role: operator}
groups: {finance: [ana, ben], ops: [laptop]}
tls: {dir: certs}
roles:
  policy: {listen: ":7001", addr: "policy.mesh:7001"}
  gateway: {addr: "gateway.mesh:9005"}
secrets: {commands: {op: {command: [op, read, x], timeout: 5s}}, vault: {address: "https://vault.example.com", namespace: team, ca: ca.pem, kubernetes: {role: sluice}}}
journal: {sync: always, calls_mib: 128, share: 0.25, arguments: {retention: 48h, mib: 64}}
session: {idle: 1h, max_per_principal: 7, cap: 3}
servers:
  notes:
    stdio: {command: [npx, server.js], env: {KEY: "${file:key}"}, per: shared, processes: 9, install: each_start, dir: work, sandbox: {mode: required, write: [shared], network: false}}
  github: {http: {url: "https://api.example.com/mcp", headers: {Authorization: "Bearer ${env:GITHUB}"}}, timeout: 5s, max_timeout: 7s, record: {arguments: redacted}}
policies: [policies, more.yaml]
telemetry: {otlp: "http://localhost:4317", sample: 0.5, trust_parent: true}
`

func TestLoad_ReadsEveryKey(t *testing.T) {
	t.Parallel()
	path := write(t, everything)
	got, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Listen, want.GRPC, want.Data = "0.0.0.0:8080", "127.0.0.1:9999", "/var/lib/sluice"
	want.ListenTLS = config.ListenTLS{Cert: "mcp.pem", Key: "mcp-key.pem"}
	want.BehindProxy = []string{"10.0.0.7", "10.1.0.0/16", "fd00::/8"}
	want.Hosts = []string{"mcp.example.com", "10.0.0.1", "fe80::1", "sluice_gateway"}
	want.Origins = []string{"https://app.example.com", "http://localhost:3000"}
	want.Auth.Tokens = []config.Token{
		{Name: "laptop", Token: "${env:TOKEN}", Tenant: "default", Subject: "laptop", Agent: "dev", Owner: "ana", Groups: []string{"developers", "ops"}, Role: "agent"},
		{Name: "ops@1", SHA256: "00", Tenant: "acme", Subject: "ben", Role: "operator"},
	}
	want.Groups = map[string][]string{"finance": {"ana", "ben"}, "ops": {"laptop"}}
	want.TLS.Dir = "certs"
	want.Roles = map[string]config.Role{
		"policy": {Listen: ":7001", Addr: "policy.mesh:7001"}, "gateway": {Listen: ":9005", Addr: "gateway.mesh:9005"},
		"ratelimit": {Listen: ":9002", Addr: "ratelimit:9002"}, "approval": {Listen: ":9003", Addr: "approval:9003"},
		"wasmagent": {Listen: ":9004", Addr: "wasmagent:9004"}, "identity": {Listen: ":9006", Addr: "identity:9006"},
	}
	want.Secrets = config.Secrets{
		Commands: map[string]config.SecretCommand{"op": {Command: []string{"op", "read", "x"}, Timeout: 5 * time.Second}},
		Vault: config.Vault{Address: "https://vault.example.com", Namespace: "team", CA: "ca.pem", Kubernetes: &config.KubernetesAuth{
			Role: "sluice", TokenFile: "/var/run/secrets/kubernetes.io/serviceaccount/token", Mount: "kubernetes",
		}},
	}
	want.Journal = config.Journal{Sync: "always", CallsMiB: 128, Share: 0.25, Arguments: config.RecordedArguments{Retention: 48 * time.Hour, MiB: 64}}
	want.Session = config.Session{Idle: time.Hour, MaxPerPrincipal: 7, Cap: 3}
	want.Servers = map[string]config.Server{
		"notes": {Timeout: time.Minute, MaxTimeout: 10 * time.Minute, Stdio: &config.StdioServer{
			Install: "each_start",
			Command: []string{"npx", "server.js"}, Env: map[string]config.Secret{"KEY": "${file:key}"}, Per: "shared", Processes: 9, Dir: "work",
			Limits:  config.StdioLimits{Tasks: 512, Memory: 2 << 30, Disk: 2 << 30},
			Sandbox: config.StdioSandbox{Mode: "required", Write: []string{"shared"}, Network: new(false)},
		}},
		"github": {Timeout: 5 * time.Second, MaxTimeout: 7 * time.Second, Record: config.Record{Arguments: "redacted"}, HTTP: &config.HTTPServer{
			URL: "https://api.example.com/mcp", Headers: map[string]config.Secret{"Authorization": "Bearer ${env:GITHUB}"},
		}},
	}
	want.Policies = []string{"policies", "more.yaml"}
	want.Telemetry = config.Telemetry{OTLP: "http://localhost:4317", Sample: 0.5, TrustParent: true}
	if diff := cmp.Diff(want, *got, cmpopts.IgnoreUnexported(config.File{}, config.Server{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !got.HasSeparateRoles() || got.Name() != path {
		t.Errorf("apart is %t, the name is %s", got.HasSeparateRoles(), got.Name())
	}
}

func TestLoad_ReturnsDefaultsWithoutFile(t *testing.T) {
	t.Parallel()
	got, err := config.Load("", noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:8080" || got.GRPC != "127.0.0.1:9090" || got.Data != ".sluice" || got.Journal != (config.Journal{Sync: "never", CallsMiB: 1024, Share: 0.5, Arguments: config.RecordedArguments{Retention: 7 * 24 * time.Hour, MiB: 256}}) ||
		got.Session != (config.Session{Idle: 30 * time.Minute, MaxPerPrincipal: 100, Cap: 10}) || got.Telemetry.Sample != 0.01 ||
		got.Telemetry.TrustParent || got.HasSeparateRoles() || got.Roles["approval"].Addr != "approval:9003" || len(got.Auth.Tokens) > 0 {
		t.Errorf("got %+v", got)
	}
	approvals := config.Approvals{Hold: 45 * time.Second, Decide: 15 * time.Minute, Execute: 5 * time.Minute, MaxPending: 5, MaxAsked: config.MaxAsked{Max: 30, Window: time.Hour}}
	if diff := cmp.Diff(approvals, got.Approvals); diff != "" {
		t.Errorf("approvals (-want +got):\n%s", diff)
	}
	if got.Path("x/y") != "x/y" || got.Name() != "" {
		t.Errorf("without a file x/y is %s, and the name is %q", got.Path("x/y"), got.Name())
	}
	minimal, err := config.Load(write(t, "servers:\n  s: {stdio: {command: [s]}}\n"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	if s := minimal.Servers["s"]; s.Timeout != time.Minute || s.Stdio.Per != "principal" || s.Stdio.Dir != "private" || s.Stdio.Sandbox.Mode != "auto" || !*s.Stdio.Sandbox.Network {
		t.Errorf("got %+v of %+v", s.Stdio, s)
	}
}

func TestPath_IsRelativeToFile(t *testing.T) {
	t.Parallel()
	path := write(t, "data: state\n")
	f, err := config.Load(path, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{"state": filepath.Join(filepath.Dir(path), "state"), "/abs": "/abs", "": ""} {
		if got := f.Path(given); got != want {
			t.Errorf("%q is %q, want %q", given, got, want)
		}
	}
	f.SetData("elsewhere")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := f.Path(f.Data), filepath.Join(here, "elsewhere"); got != want {
		t.Errorf("the data folder is %s, want %s, where the process runs", got, want)
	}
}

func TestLoad_FailsWhenFileIsUnreadable(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := config.Load(missing, noEnv); err == nil || err.Error() != "the configuration "+missing+" does not exist: name another with --config" {
		t.Errorf("got %v", err)
	}
	if _, err := config.Load(t.TempDir(), noEnv); err == nil || !strings.Contains(err.Error(), "read the configuration") {
		t.Errorf("a folder: %v", err)
	}
}

func TestLoad_VariablesOverrideFile(t *testing.T) {
	t.Parallel()
	path := write(t, everything)
	f, err := config.Load(path, env(map[string]string{
		"SLUICE_LISTEN": "127.0.0.1:1", "SLUICE_SESSION_IDLE": "7s", "SLUICE_SESSION_MAX_PER_PRINCIPAL": "9", "SLUICE_TELEMETRY_SAMPLE": "1",
		"SLUICE_TELEMETRY_TRUST_PARENT": "false", "SLUICE_TLS_DIR": "other", "SLUICE_GRPC": "", // an empty variable counts as not set
		"SLUICE_TOKEN": "the command line's", "SLUICE_SERVERS": "a cluster's", "SLUICE_PORT": "tcp://10.0.0.1:80", "LISTEN": "no",
		"SLUICE_AGENTS_PERSON_DAY_TOKENS": "5000000000", "SLUICE_APPROVALS_NOTIFY_MAIL": "of another program",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if f.Listen != "127.0.0.1:1" || f.Session.Idle != 7*time.Second || f.Session.MaxPerPrincipal != 9 || f.Telemetry.Sample != 1 ||
		f.Telemetry.TrustParent || f.TLS.Dir != "other" || f.GRPC != "127.0.0.1:9999" || len(f.Servers) != 2 || f.Agents.PersonDay.Tokens != 5_000_000_000 {
		t.Errorf("got %+v", f)
	}
	for name, want := range map[string]string{
		"SLUICE_SESSION_IDLE=soon":         `the environment variable SLUICE_SESSION_IDLE: "soon" is not a duration such as 30s`,
		"SLUICE_SESSION_CAP=1.5":           `the environment variable SLUICE_SESSION_CAP: "1.5" is not a whole number`,
		"SLUICE_TELEMETRY_SAMPLE=all":      `the environment variable SLUICE_TELEMETRY_SAMPLE: "all" is not a number`,
		"SLUICE_TELEMETRY_TRUST_PARENT=ja": `the environment variable SLUICE_TELEMETRY_TRUST_PARENT: "ja" is not true or false`,
		"SLUICE_TELEMETRY_SAMPLE=2":        `the environment variable SLUICE_TELEMETRY_SAMPLE: telemetry.sample: 2 is not between 0 and 1`,
		"SLUICE_TELEMETRY_SAMPLE=NaN":      `the environment variable SLUICE_TELEMETRY_SAMPLE: telemetry.sample: NaN is not between 0 and 1`,
		"SLUICE_LISTEN=8080":               `the environment variable SLUICE_LISTEN: listen: "8080" is not an address such as 127.0.0.1:8080`,
	} {
		key, value, _ := strings.Cut(name, "=")
		if _, err := config.Load(path, env(map[string]string{key: value})); err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", name, err, want)
		}
	}
}

func TestLoad_EveryScalarKeyHasVariable(t *testing.T) {
	t.Parallel()
	var walk func(part reflect.Type, path string)
	walk = func(part reflect.Type, path string) {
		for field := range part.Fields() {
			key := path + "_" + strings.ToUpper(field.Tag.Get("yaml"))
			switch kind := field.Type.Kind(); {
			case field.Tag.Get("yaml") == "", kind == reflect.Slice, kind == reflect.Map, kind == reflect.Pointer:
			case kind == reflect.Struct:
				walk(field.Type, key)
			case kind == reflect.String:
				var asked bool
				_, _ = config.Load("", func(name string) (string, bool) {
					asked = asked || name == key
					return "", false
				})
				if !asked {
					t.Errorf("%s is not looked up", key)
				}
			default:
				if _, err := config.Load("", env(map[string]string{key: "\x00"})); err == nil || !strings.Contains(err.Error(), "the environment variable "+key) {
					t.Errorf("%s: %v", key, err)
				}
			}
		}
	}
	walk(reflect.TypeFor[config.File](), "SLUICE")
}
