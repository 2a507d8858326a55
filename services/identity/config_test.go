package identity_test

import (
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const (
	oneText   = "n3Vq8LrT2xWz7JkP5sYc9DfG4hMbA6uE"
	otherText = "k7Rw2NpX9vBt4QzS6gHj3LmC8yFdU5aE"
)

func digest(text string) []byte {
	hash := authn.HashSecret(text)
	return hash[:]
}

// load writes files to a new directory, and then loads a configuration from this directory. tokens is the YAML of the
// configuration's tokens.
func load(t *testing.T, tokens string, files map[string]string) *config.File {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		write(name, text)
	}
	write("sluice.yaml", "auth:\n  tokens:\n"+tokens)
	f, err := config.Load(filepath.Join(dir, "sluice.yaml"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func noEnv(string) (string, bool) { return "", false }

func env(name, value string) config.Env {
	return func(variable string) (string, bool) { return value, variable == name }
}

func TestFromFile_ResolvesTokens(t *testing.T) {
	t.Parallel()
	hash := hex.EncodeToString(digest(oneText))
	tests := []struct {
		name, token string
		env         config.Env
		files       map[string]string
	}{
		{name: "as text", token: "token: " + oneText},
		{name: "as a hash", token: "sha256: " + hash},
		{name: "as a hash in capitals", token: "sha256: " + strings.ToUpper(hash)},
		{name: "as text in a variable", token: `token: "${env:T}"`, env: env("T", oneText)},
		{name: "as a hash in a variable", token: `sha256: "${env:T}"`, env: env("T", hash)},
		{name: "as text in a file", token: `token: "${file:t.txt}"`, files: map[string]string{"t.txt": oneText + "\n"}},
		{name: "as a hash in a file", token: `sha256: "${file:t.txt}"`, files: map[string]string{"t.txt": hash + "\r\n"}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.env == nil {
				c.env = noEnv
			}
			f := load(t, "    - {name: bot, "+c.token+", role: operator, tenant: acme, subject: ana, agent: dev, owner: bob, groups: [x, y]}\n", c.files)
			cfg, err := identity.FromFile(f, c.env)
			if err != nil {
				t.Fatal(err)
			}
			want := []*identityv1.TokenRecord{{Sha256: digest(oneText), Token: &identityv1.Token{
				Name: "bot", Tenant: "acme", Subject: "ana", Agent: "dev", Owner: "bob", Groups: []string{"x", "y"},
				Role: authv1.TokenRole_TOKEN_ROLE_OPERATOR, Configured: true,
			}}}
			if diff := cmp.Diff(want, cfg.Tokens, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestFromFile_FailsForInvalidTokens(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, token string
		env         config.Env
		want        string
	}{
		{"that are too short", "token: short-and-secret-0123456789", noEnv, "fewer than 32"},
		{"that are samples", "token: change-me-change-me-change-me-change-me", noEnv, "publicly known"},
		{"of one character", "token: " + strings.Repeat("q", 40), noEnv, "publicly known"},
		{"whose variable is not set", `token: "${env:T}"`, noEnv, "the environment variable T is not set"},
		{"whose variable has a short text", `token: "${env:T}"`, env("T", "short-and-secret"), "fewer than 32"},
		{"whose file is not there", `token: "${file:gone.txt}"`, noEnv, "gone.txt"},
		{"whose hash is a text", "sha256: " + oneText, noEnv, "64 hexadecimal digits"},
		{"whose hash is too short", "sha256: " + hex.EncodeToString(digest(oneText)[:31]), noEnv, "64 hexadecimal digits"},
		{"whose hash is not set", `sha256: "${env:T}"`, noEnv, "the environment variable T is not set"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := load(t, "    - {name: good, token: "+otherText+", role: agent}\n    - {name: bad, "+c.token+", role: agent}\n", nil)
			_, err := identity.FromFile(f, c.env)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "auth.tokens[1] (bad)") {
				t.Fatalf("got %v, want %q and the token's path", err, c.want)
			}
			for _, secret := range []string{"short-and-secret", "change-me", oneText, otherText, "qqqq"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error contains a secret: %v", err)
				}
			}
		})
	}
}

// The proxy of a server is resolved. The environment names the proxy if the configuration says so, or names none.
func TestFromFile_ResolvesTheProxyOfAServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ proxy, want, problem string }{
		"a URL":           {`, proxy: "http://me:${env:PASSWORD}@proxy.example.com:3128"`, "http://me:secret@proxy.example.com:3128", ""},
		"none":            {"", "", ""},
		"the environment": {", proxy: env", "", ""},
		"not a URL":       {`, proxy: "${env:PASSWORD}"`, "", "servers.wiki.http.proxy: it is not the http or https URL"},
		"not set":         {`, proxy: "${env:OTHER}"`, "", "servers.wiki.http.proxy: the environment variable OTHER is not set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := load(t, "    - {name: a, token: "+oneText+", role: agent}\nservers:\n  wiki: {http: {url: https://wiki.example.com/mcp"+c.proxy+"}, credentials: {as: shared, oauth: {}}}\n", nil)
			got, err := identity.FromFile(f, env("PASSWORD", "secret"))
			if c.problem != "" {
				if err == nil || !strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), "secret") {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil || got.Servers["wiki"].Proxy != c.want {
				t.Errorf("the proxy is %q, %v", got.Servers["wiki"].Proxy, err)
			}
		})
	}
}

// The identity service knows how it signs in at a server.
func TestFromFile_ReadsTheSignInAtAServer(t *testing.T) {
	t.Parallel()
	f := load(t, "    - {name: a, token: "+oneText+", role: agent}\nservers:\n  wiki: {http: {url: https://wiki.example.com/mcp}, credentials: {as: person, oauth: {prompt: login, resource: omit}}}\n", nil)
	got, err := identity.FromFile(f, noEnv)
	if of := got.Servers["wiki"]; err != nil || !of.ForEachPerson || of.Prompt != "login" || !of.OmitResource {
		t.Errorf("the server is %+v, %v", of, err)
	}
}

func TestFromFile_NamesEveryInvalidToken(t *testing.T) {
	t.Parallel()
	f := load(t, "    - {name: a, token: short, role: agent}\n    - {name: b, sha256: short, role: agent}\n", nil)
	_, err := identity.FromFile(f, noEnv)
	if err == nil || !strings.Contains(err.Error(), "auth.tokens[0] (a)") || !strings.Contains(err.Error(), "auth.tokens[1] (b)") {
		t.Errorf("got %v, want both", err)
	}
}

func TestNew_FailsForInvalidConfigurations(t *testing.T) {
	t.Parallel()
	record := func(name string, hash []byte) *identityv1.TokenRecord {
		return &identityv1.TokenRecord{Sha256: hash, Token: &identityv1.Token{Name: name}}
	}
	log := slog.New(slog.DiscardHandler)
	tests := []struct {
		name   string
		change func(*identity.Config, *identity.Deps)
		want   string
	}{
		{"two tokens of one text", func(c *identity.Config, _ *identity.Deps) {
			c.Tokens = []*identityv1.TokenRecord{record("a", digest(oneText)), record("b", digest(oneText))}
		}, `tokens "a" and "b" have the same text`},
		{"the hash of a sample", func(c *identity.Config, _ *identity.Deps) {
			c.Tokens = []*identityv1.TokenRecord{record("a", digest("0123456789abcdef0123456789abcdef"))}
		}, "publicly known"},
		{"the hash of no text", func(c *identity.Config, _ *identity.Deps) {
			c.Tokens = []*identityv1.TokenRecord{record("a", digest(""))}
		}, "publicly known"},
		{"a hash of another length", func(c *identity.Config, _ *identity.Deps) {
			c.Tokens = []*identityv1.TokenRecord{record("a", digest(oneText)[:31])}
		}, "31 bytes"},
		{"no store", func(c *identity.Config, _ *identity.Deps) { c.Data = "" }, "a store"},
		{"no store of that kind", func(c *identity.Config, _ *identity.Deps) { c.Source = "redis://x" }, "no store is called"},
		{"a negative age", func(c *identity.Config, _ *identity.Deps) { c.MaxStoreAge = -1 }, "must not be negative"},
		{"no tokens to fill", func(_ *identity.Config, d *identity.Deps) { d.Tokens = nil }, "dependency"},
		{"no policy service", func(_ *identity.Config, d *identity.Deps) { d.Policy = nil }, "dependency"},
		{"no log", func(_ *identity.Config, d *identity.Deps) { d.Log = nil }, "dependency"},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := identity.Config{Identities: identity.Identities{Tokens: rpctest.Records()}, Source: "sqlite", Data: t.TempDir()}
			deps := identity.Deps{Tokens: new(authn.Tokens), Policy: new(exporter), Meter: noop.Meter{}, Log: log}
			svc, err := identity.New(t.Context(), cfg, deps)
			if err != nil {
				t.Fatalf("with the valid configuration: %v", err)
			}
			if err := svc.Close(); err != nil {
				t.Fatal(err)
			}
			c.change(&cfg, &deps)
			if _, err := identity.New(t.Context(), cfg, deps); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
