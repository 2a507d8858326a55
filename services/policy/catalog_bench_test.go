package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

// BenchmarkCatalog_ThousandServers measures a catalog of 1,000 servers with 100 tools each. It measures reporting
// tools, starting the service, listing one page of tools, and evaluating calls by category. Evaluations are also
// measured with a catalog of one server.
func BenchmarkCatalog_ThousandServers(b *testing.B) {
	const servers, tools = 1000, 100
	opts := options{paths: []string{folder(b, byClass)}, servers: map[string]catalog.Settings{}, data: b.TempDir()}
	var listed []*policyv1.ToolDefinition
	for i := range tools {
		verb := []string{"Gets", "Updates", "Runs", "Deletes"}[i%4]
		listed = append(listed, definition(fmt.Sprintf("tool_%03d", i), fmt.Sprintf("%s the thing of number %d, with all that belongs to it, for any caller who asks.", verb, i)))
	}
	svc, tokens := build(b, opts)
	s := rpctest.Serve(b, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	l := &catalogFixture{
		t: b, Server: s, gateway: policyv1.NewCatalogServiceClient(s.Gateway()), operator: policyv1.NewCatalogServiceClient(s.Person(b, "operator")),
		policy: policyv1.NewPolicyServiceClient(s.Gateway()),
	}
	name := func(i int) string { return fmt.Sprintf("server-%04d", i) }
	read, err := catalog.ParseListed(listed[0].GetName(), listed[0].GetDefinitionJson())
	if err != nil {
		b.Fatal(err)
	}
	if _, err := l.report(asGatewayItself(b.Context()), &policyv1.ReportHead{Server: name(500), ProtocolVersion: "2025-11-25", Whole: true}, listed...); err != nil {
		b.Fatal(err)
	}
	decide := func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			resp, err := l.policy.DecideCall(asAna(b.Context()), &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: name(500), Name: "tool_000", DefinitionDigest: read.Digest[:]}})
			if err != nil || resp.GetDecision().GetEffect() != allow {
				b.Fatal(resp, err)
			}
		}
	}
	b.Run("decide with 1 server", decide)
	b.Run("report", func(b *testing.B) {
		n := 0
		for b.Loop() {
			if _, err := l.report(asGatewayItself(b.Context()), &policyv1.ReportHead{Server: name(n % servers), ProtocolVersion: "2025-11-25", Whole: true}, listed...); err != nil {
				b.Fatal(err)
			}
			n++
		}
	})
	for i := range servers {
		if _, err := l.report(asGatewayItself(b.Context()), &policyv1.ReportHead{Server: name(i), ProtocolVersion: "2025-11-25", Whole: true}, listed...); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Logf("%d MiB of heap in use with %d servers", m.HeapInuse>>20, servers)
	b.Run(fmt.Sprintf("decide with %d servers", servers), decide)
	b.Run("page", func(b *testing.B) {
		for b.Loop() {
			if _, err := l.operator.GetTool(b.Context(), &policyv1.GetToolRequest{Server: name(500), Tool: "tool_001"}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if resp, err := l.operator.ListTools(b.Context(), &policyv1.ListToolsRequest{PageSize: 100}); err != nil || resp.GetTotal() != servers*tools {
				b.Fatal(resp.GetTotal(), err)
			}
		}
	})
	if err := svc.Close(); err != nil {
		b.Fatal(err)
	}
	b.Run("start", func(b *testing.B) {
		for b.Loop() {
			again, _ := build(b, opts)
			if err := again.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkFilterPinnedList filters a list of 353 real tools whose definitions are pinned.
func BenchmarkFilterPinnedList(b *testing.B) {
	raw, err := os.ReadFile("internal/classify/testdata/lists/claude-flow.json")
	if err != nil {
		b.Fatal(err)
	}
	var list struct{ Tools []json.RawMessage }
	if err := json.Unmarshal(raw, &list); err != nil || len(list.Tools) != 353 {
		b.Fatal(len(list.Tools), err)
	}
	svc, tokens := build(b, options{paths: []string{folder(b, byClass)}, servers: map[string]catalog.Settings{}})
	s := rpctest.Serve(b, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	l := &catalogFixture{t: b, Server: s, gateway: policyv1.NewCatalogServiceClient(s.Gateway()), policy: policyv1.NewPolicyServiceClient(s.Gateway())}
	var tools []*policyv1.ToolDefinition
	for _, text := range list.Tools {
		var named struct{ Name string }
		if err := json.Unmarshal(text, &named); err != nil {
			b.Fatal(err)
		}
		tools = append(tools, &policyv1.ToolDefinition{Name: named.Name, DefinitionJson: string(text)})
	}
	resp := l.reportOwnList(tools...)
	req := &policyv1.FilterToolsRequest{Server: "files"}
	for i, tool := range tools {
		req.Tools = append(req.Tools, &policyv1.ToolRef{Name: tool.GetName(), DefinitionDigest: resp.GetTools()[i].GetDefinitionDigest()})
	}
	b.ReportAllocs()
	for b.Loop() {
		if got, err := svc.FilterTools(asGateway(b.Context()), req); err != nil || len(got.GetTools()) != 353 {
			b.Fatal(err)
		}
	}
}

func asGateway(ctx context.Context) context.Context {
	return authn.WithCaller(ctx, &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: &identityv1.Principal{Tenant: "default", Subject: "ana"}})
}
