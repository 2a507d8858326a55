package policy_test

import (
	"fmt"
	"strings"
	"testing"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// BenchmarkServiceDecideCall measures how many calls per second a policy service with 10,000 rules evaluates. It
// measures calls that match a rule without a condition, and calls that match three rules with conditions on the
// arguments. It measures both inside the process, and over gRPC on the loopback interface. The client and the service
// share the processors.
func BenchmarkServiceDecideCall(b *testing.B) {
	var text strings.Builder
	text.WriteString("version: 1\nserver: demo\ndefault: deny\ntools:\n  plain: {action: allow}\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  write_%d: {action: allow, when: 'path.within(args.path, \"/srv/docs\")'}\n", i)
	}
	text.WriteString(`rules:
  - {name: amount, match: {tool: "write_*"}, when: 'decimal(args.amount) > decimal("100")', action: deny}
  - {name: to, match: {tool: "write_*"}, when: 'args.to.endsWith(".example") && caller.agent == ""', otherwise: {action: deny}, action: allow}
`)
	svc, tokens := build(b, options{paths: []string{folder(b, text.String())}})
	client := policyv1.NewPolicyServiceClient(rpctest.Serve(b, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens}).Person(b, "operator"))
	subject := ana()
	for _, bb := range []struct {
		name string
		call *policyv1.Call
	}{
		{"a plain rule", call("plain")},
		{"three conditions", &policyv1.Call{Server: "demo", Name: "write_77", ParamsJson: `{"name":"write_77","arguments":{"path":"/srv/docs/a","amount":99.5,"to":"a.example"}}`}},
	} {
		b.Run(bb.name+"/in process", func(b *testing.B) {
			ctx := asGateway(b.Context())
			decideInParallel(b, func() (*policyv1.DecideCallResponse, error) {
				return svc.DecideCall(ctx, &policyv1.DecideCallRequest{Call: bb.call})
			})
		})
		b.Run(bb.name+"/loopback", func(b *testing.B) {
			b.SetParallelism(16)
			decideInParallel(b, func() (*policyv1.DecideCallResponse, error) {
				return client.DecideCall(b.Context(), &policyv1.DecideCallRequest{Call: bb.call, Subject: subject})
			})
		})
	}
}

func decideInParallel(b *testing.B, decide func() (*policyv1.DecideCallResponse, error)) {
	b.Helper()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if resp, err := decide(); err != nil || resp.GetDecision().GetEffect() != allow {
				b.Errorf("%v, %v", resp, err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checks/s")
}
