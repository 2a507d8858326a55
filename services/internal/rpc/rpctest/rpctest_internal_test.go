package rpctest

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// scribbler is a policy service that breaks the rules: it changes the requests that it receives and the responses that
// it has sent.
type scribbler struct {
	policyv1.UnimplementedPolicyServiceServer
	said *policyv1.Decision
}

func (s *scribbler) Register(r grpc.ServiceRegistrar) { policyv1.RegisterPolicyServiceServer(r, s) }

func (s *scribbler) DecideCall(_ context.Context, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
	if s.said != nil {
		s.said.PolicyRevision = "another"
	}
	if req.GetCall().GetName() == "scribble" {
		req.Call.Server = "another"
	}
	s.said = &policyv1.Decision{PolicyRevision: "one"}
	return &policyv1.DecideCallResponse{Decision: s.said}, nil
}

func TestWitness_DetectsChangedMessages(t *testing.T) {
	t.Parallel()
	s := Serve(t, authv1.Role_ROLE_POLICY, new(scribbler), Options{})
	ctx := authn.OnBehalfOf(t.Context(), Principal("default", "ana"))
	inner := s.Gateway().(*Witness).ClientConnInterface
	for _, tt := range []struct {
		name  string
		tools []string
		want  int
	}{
		{"nothing", []string{"t"}, 0},
		{"the question", []string{"scribble"}, 1},
		{"what it said before", []string{"t", "t"}, 1},
	} {
		w := &Witness{ClientConnInterface: inner}
		for _, tool := range tt.tools {
			_, err := policyv1.NewPolicyServiceClient(w).DecideCall(ctx, &policyv1.DecideCallRequest{Call: &policyv1.Call{Server: "s", Name: tool}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := w.changed(); len(got) != tt.want {
			t.Errorf("%s: the witness saw %q, want %d changes", tt.name, got, tt.want)
		}
	}
}

func TestMethodsOf_RefusesPackageWithoutMethods(t *testing.T) {
	t.Parallel()
	for _, name := range []protoreflect.FullName{"sluice.polic.v1", "sluice.common.v1"} {
		if got, err := methodsOf(name); err == nil {
			t.Errorf("%s has the methods %v, want an error", name, got)
		}
	}
}
