package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const attackedPolicy = `version: 1
name: files
default: deny
tools:
  refund: {action: allow, when: args.amount <= 100}
  deploy: {action: allow}
  write_file: {action: allow, when: 'path.within(args.path, "/srv/docs")'}
  fetch: {action: allow, when: 'url.host(args.url) == "ok.example"'}
  send_mail: {action: allow, when: 'email.domain(args.to) == "ok.example"'}
rules:
  - {name: only-eu, match: {tool: deploy}, when: args.region != "eu", action: deny}
  - {name: not-secret, match: {tool: write_file}, when: 'path.within(args.path, "/srv/docs/secret")', action: deny}
`

// TestConditions_RefuseArgumentsThatMislead checks that the server does not receive calls with misleading arguments.
// Arguments are misleading if the type of an argument differs from the type that a condition expects, if an argument
// that a deny rule reads is missing, or if another program may interpret them differently. Cases P9, P10, P14.
func TestConditions_RefuseArgumentsThatMislead(t *testing.T) {
	t.Parallel()
	var tools []string
	for _, name := range []string{"refund", "deploy", "write_file", "fetch", "send_mail"} {
		tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
	}
	up := rawmcp.Start(t, "["+strings.Join(tools, ",")+"]")
	c := (&rawmesh.Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: attackedPolicy,
	})}).Connect(t)
	for _, tt := range []struct{ tool, arguments, want string }{
		{"refund", `{"amount":100}`, "ran"},
		{"refund", `{"amount":"99999"}`, "type_error"},
		{"refund", `{"amount":"5"}`, "type_error"},
		{"refund", `{"amount":[5]}`, "type_error"},
		{"refund", `{"amount":true}`, "type_error"},
		{"refund", `{"amount":null}`, "type_error"},
		{"refund", `{"amount":{"$gt":0}}`, "type_error"},
		{"refund", `{}`, "type_error"},
		{"deploy", `{"region":"eu"}`, "ran"},
		{"deploy", `{"region":"us"}`, "denied_by_rule"},
		{"deploy", `{}`, "type_error"},
		{"deploy", `{"Region":"us"}`, "type_error"},
		{"deploy", `{"region":null}`, "denied_by_rule"},
		{"deploy", `{"region":["eu"]}`, "denied_by_rule"},
		{"deploy", `{"region":"eu","REGION":"us"}`, "type_error"},
		{"write_file", `{"path":"/srv/docs/a"}`, "ran"},
		{"write_file", `{"path":"/srv/docs/secret/a"}`, "denied_by_rule"},
		{"write_file", `{"path":"/srv/docs/secret./a"}`, "type_error"},
		{"write_file", `{"path":"/srv/docs/..\u00a5..\u00a5etc"}`, "type_error"},
		{"write_file", `{"path":"/srv/docs/%2e%2e/%2e%2e/etc"}`, "type_error"},
		{"fetch", `{"url":"https://ok.example/a"}`, "ran"},
		{"fetch", `{"url":"https://ok.example@evil.example/a"}`, "type_error"},
		{"fetch", `{"url":"https://evil.example\\@ok.example/a"}`, "type_error"},
		{"send_mail", `{"to":"ana@ok.example"}`, "ran"},
		{"send_mail", `{"to":"=?utf-8?q?ana=40evil.example=20?=@ok.example"}`, "type_error"},
	} {
		before := len(up.Calls(tt.tool))
		body := string(c.Call(tt.tool, tt.arguments).Body)
		if !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: the response is %s; want %s", tt.tool, tt.arguments, body, tt.want)
		}
		if ran := len(up.Calls(tt.tool)) > before; ran != (tt.want == "ran") {
			t.Errorf("%s %s: the server received the call: %t", tt.tool, tt.arguments, ran)
		}
	}
}
