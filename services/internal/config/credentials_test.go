package config_test

import (
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
)

func TestCredentials_AreRead(t *testing.T) {
	t.Parallel()
	f := parse(t, `
stores: {identity_key: "${plain:KEY}"}
servers:
  wiki:
    http: {url: https://wiki.example.com/mcp}
    credentials: {as: shared, oauth: {client_id: c, client_secret: "${env:SECRET}", scopes: [read], issuer: https://login.example.com, resource: omit, prompt: select_account}}
  plain:
    http: {url: "http://127.0.0.1:8080/mcp"}
    credentials: {as: shared, oauth: {}}
  people:
    http: {url: https://people.example.com/mcp}
    credentials: {as: person, oauth: {}}
  other:
    http: {url: https://other.example.com/mcp}
`)
	got := f.Servers["wiki"].Credentials
	if got.As != "shared" || got.OAuth.ClientID != "c" || got.OAuth.Scopes[0] != "read" || got.OAuth.Issuer != "https://login.example.com" || got.OAuth.Resource != "omit" || got.OAuth.Prompt != "select_account" {
		t.Errorf("the credentials are %+v, %+v", got, got.OAuth)
	}
	if f.Servers["other"].Credentials != nil {
		t.Error("a server without the key has credentials")
	}
	for name, want := range map[string]bool{"wiki": false, "people": true, "other": false} {
		if got := f.Servers[name].Credentials.ForEachPerson(); got != want {
			t.Errorf("each person has an account of %s: %t", name, got)
		}
	}
}

func TestCredentials_ProblemsNameTheKey(t *testing.T) {
	t.Parallel()
	const https = "http: {url: https://wiki.example.com/mcp}"
	for server, want := range map[string]string{
		https + ", credentials: {oauth: {}}":                                                                                            "servers.wiki.credentials.as",
		https + ", credentials: {as: agent, oauth: {}}":                                                                                 `"agent" is not shared or person`,
		https + ", credentials: {as: Person, oauth: {}}":                                                                                `"Person" is not shared or person`,
		https + ", credentials: {as: person}":                                                                                           "servers.wiki.credentials.oauth",
		"stdio: {command: [wiki]}, credentials: {as: person, oauth: {}}":                                                                "only for servers over HTTP",
		https + ", credentials: {as: shared}":                                                                                           "servers.wiki.credentials.oauth",
		https + ", credentials: {as: shared, oauth: {client_secret: x}}":                                                                "credentials.oauth.client_id",
		https + `, credentials: {as: shared, oauth: {scopes: ["a b"]}}`:                                                                 "is not a scope",
		https + ", credentials: {as: shared, oauth: {issuer: http://login.example.com}}":                                                "is not https",
		https + ", credentials: {as: shared, oauth: {resource: x}}":                                                                     "is not omit",
		https + ", credentials: {as: shared, oauth: {prompt: none}}":                                                                    `"none" is not consent, login, select_account or omit`,
		"stdio: {command: [wiki]}, credentials: {as: shared, oauth: {}}":                                                                "only for servers over HTTP",
		"http: {url: http://wiki.example.com/mcp}, credentials: {as: shared, oauth: {}}":                                                "without TLS",
		"http: {url: https://a:b@wiki.example.com/mcp}, credentials: {as: shared, oauth: {}}":                                           "user name",
		"http: {url: https://wiki.example.com/mcp, headers: {authorization: x}}, credentials: {as: shared, oauth: {}}":                  "remove one of them",
		`http: {url: https://wiki.example.com/mcp, proxy: "http://a:${keychain:wiki/P}@proxy:1"}, credentials: {as: shared, oauth: {}}`: "keychain in `http.proxy`",
		https + ", credentials: {as: shared, oauth: {scopes: [" + strings.TrimSuffix(strings.Repeat("a,", 33), ",") + "]}}":             "33 scopes are more than 32",
	} {
		_, err := config.Parse("sluice.yaml", []byte("servers:\n  wiki: {"+server+"}\n"), func(string) (string, bool) { return "", false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q in it", server, err, want)
		}
	}
}
