package policy_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

func TestGetRevision_ReturnsTheActiveRevision(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	viewer := policyv1.NewPolicyServiceClient(s.Person(t, "viewer"))
	active, err := viewer.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	rev := active.GetRevision()
	if len(rev.GetId()) != 64 || !rev.GetActive() || rev.GetActivation() == "" || len(rev.GetActivation()) > 128 || rev.GetRejected() != nil {
		t.Errorf("the revision is %v", rev)
	}
	if age := time.Since(rev.GetActivated().AsTime()); age < 0 || age > time.Minute {
		t.Errorf("it became active %v ago", age)
	}
	if docs := active.GetDocuments(); len(docs) != 1 || docs[0].GetText() != document || !strings.HasSuffix(docs[0].GetPath(), "policy.yaml") {
		t.Errorf("the documents are %v", docs)
	}
	named, err := viewer.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: rev.GetId()})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(active, named, protocmp.Transform()); diff != "" {
		t.Errorf("the same revision by its ID differs (-active +by ID):\n%s", diff)
	}
	_, err = viewer.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: strings.Repeat("0", 64)})
	rpctest.WantStatus(t, err, codes.NotFound, "REVISION_UNKNOWN")
}

func TestListRevisions_ListsTheActiveRevisionOfFiles(t *testing.T) {
	t.Parallel()
	s := serve(t, options{})
	viewer := policyv1.NewPolicyServiceClient(s.Person(t, "viewer"))
	active, err := viewer.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	list, err := viewer.ListRevisions(t.Context(), new(policyv1.ListRevisionsRequest))
	if err != nil || len(list.GetRevisions()) != 1 || list.GetNextPageToken() != "" {
		t.Fatalf("%v: %v", list, err)
	}
	if diff := cmp.Diff(active.GetRevision(), list.GetRevisions()[0], protocmp.Transform()); diff != "" {
		t.Errorf("(-active +listed):\n%s", diff)
	}
}

func TestApplyDocuments_IsRefusedWhenPoliciesComeFromFiles(t *testing.T) {
	t.Parallel()
	dir := folder(t, document)
	s := serve(t, options{paths: []string{dir}, tokens: append(records(),
		rpctest.Record("foreign", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR))})
	req := &policyv1.ApplyDocumentsRequest{Documents: []*policyv1.Document{{Path: "p.yaml", Text: document}}}
	_, err := policyv1.NewPolicyServiceClient(s.Person(t, "operator")).ApplyDocuments(t.Context(), req)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "POLICIES_IN_FILES")
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("the error does not name the files: %v", err)
	}
	_, err = policyv1.NewPolicyServiceClient(s.Person(t, "foreign")).ApplyDocuments(t.Context(), req)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
}

func TestDecideCall_OperatorsOfATenantNameOnlyItsPrincipals(t *testing.T) {
	t.Parallel()
	s := serve(t, options{tokens: append(rpctest.Records(),
		rpctest.Record("acme-operator", "acme", authv1.TokenRole_TOKEN_ROLE_OPERATOR),
		rpctest.Record("acme-viewer", "acme", authv1.TokenRole_TOKEN_ROLE_VIEWER))})
	own, foreign, mixed := rpctest.Principal("acme", "bob"), ana(), rpctest.Principal("acme", "bob")
	mixed.Chain = []*identityv1.Principal{ana()}
	tests := []struct {
		name    string
		token   string
		subject *identityv1.Principal
		want    codes.Code
	}{
		{"an operator of the installation, for another tenant", "operator", own, codes.OK},
		{"an operator of a tenant, for its own", "acme-operator", own, codes.OK},
		{"an operator of a tenant, for another", "acme-operator", foreign, codes.PermissionDenied},
		{"an operator of a tenant, for another tenant in the chain", "acme-operator", mixed, codes.PermissionDenied},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reason := ""
			if c.want != codes.OK {
				reason = "TENANT_REFUSED"
			}
			client := policyv1.NewPolicyServiceClient(s.Person(t, c.token))
			_, err := client.DecideCall(t.Context(), &policyv1.DecideCallRequest{Call: call("export"), Subject: c.subject})
			rpctest.WantStatus(t, err, c.want, reason)
			_, err = client.FilterTools(t.Context(), &policyv1.FilterToolsRequest{Server: "demo", Subject: c.subject})
			rpctest.WantStatus(t, err, c.want, reason)
			_, err = client.ExplainCall(t.Context(), &policyv1.ExplainCallRequest{Call: call("export"), Subject: c.subject})
			rpctest.WantStatus(t, err, c.want, reason)
		})
	}
	_, err := policyv1.NewPolicyServiceClient(s.Person(t, "acme-viewer")).ExplainCall(t.Context(),
		&policyv1.ExplainCallRequest{Call: call("export"), Subject: foreign})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
}

func TestDecideCall_UsesNoRevisionOlderThanRequired(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		first := r.revision().GetRevision().GetActivation()
		r.write("policy.yaml", denyDocument)
		r.wantState(denied, true, false)
		second := r.revision().GetRevision().GetActivation()
		r.write("policy.yaml", "# again\n"+allowDocument)
		r.wantState(allowed, true, false)
		third := r.revision().GetRevision().GetActivation()
		r.write("policy.yaml", invalidDocument)
		r.wantState(allowed, false, true)

		future := "zzzzzzzzzzzz-" + strings.Repeat("0", 16)
		tests := []struct {
			name  string
			least string
			want  codes.Code
		}{
			{"none is demanded", "", codes.OK},
			{"the active one is demanded", third, codes.OK},
			{"an earlier one is demanded", second, codes.OK},
			{"one of the same rules is demanded, activated at another time", first, codes.OK},
			{"a later one is demanded", future, codes.FailedPrecondition},
			{"a later one is demanded, of the same rules", "zzzzzzzzzzzz-" + third[strings.Index(third, "-")+1:], codes.OK},
			{"nothing that was ever handed out is demanded", "newest", codes.FailedPrecondition},
			{"half of an activation is demanded", "0", codes.FailedPrecondition},
			{"a moment that is no number is demanded", "!-0000000000000000", codes.FailedPrecondition},
		}
		ctx := authn.WithCaller(r.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: ana()})
		for _, c := range tests {
			reason := ""
			if c.want != codes.OK {
				reason = "POLICY_TOO_OLD"
			}
			r.Log(c.name)
			_, err := r.svc.DecideCall(ctx, &policyv1.DecideCallRequest{Call: call("read"), MinRevision: c.least})
			rpctest.WantStatus(r.T, err, c.want, reason)
			_, err = r.svc.FilterTools(ctx, &policyv1.FilterToolsRequest{Server: "demo", MinRevision: c.least})
			rpctest.WantStatus(r.T, err, c.want, reason)
		}
	})
}

func TestWatchRevision_SendsTheRevisionThenHeartbeatsAndChanges(t *testing.T) {
	t.Parallel()
	runReload(t, oneDocument(allowDocument), func(r *reloadFixture) {
		heard := newWatchStream[policyv1.WatchRevisionResponse](r.Context())
		go func() { _ = r.svc.WatchRevision(new(policyv1.WatchRevisionRequest), heard) }() // ends with the test
		synctest.Wait()
		if got := heard.messages(); len(got) != 1 || got[0].after != 0 || got[0].message.GetRevision().GetId() != r.revision().GetRevision().GetId() {
			r.Fatalf("the first message is %v", got)
		}
		r.wantState(allowed, false, false)
		r.write("policy.yaml", denyDocument)
		r.wantState(denied, true, false)
		changed := r.revision().GetRevision()
		r.write("policy.yaml", invalidDocument)
		r.wantState(denied, false, true)
		heard.wantHeartbeats(r.T)

		var fresh, rejected int
		for _, h := range heard.messages() {
			rev := h.message.GetRevision()
			if rev.GetId() == changed.GetId() {
				if fresh++; fresh == 1 && !h.at.Equal(changed.GetActivated().AsTime()) {
					r.Errorf("a revision that became active at %v was sent at %v", changed.GetActivated().AsTime(), h.at)
				}
			}
			if len(rev.GetRejected()) > 0 {
				rejected++
			}
		}
		if fresh < 4 || rejected < 2 || rejected >= fresh {
			r.Errorf("of %d messages, %d have the new revision and %d have rejected documents", len(heard.messages()), fresh, rejected)
		}
	})
}

func TestWatchRevision_OverAConnection(t *testing.T) {
	t.Parallel()
	dir := folder(t, allowDocument)
	svc, tokens := build(t, options{paths: []string{dir}})
	s := rpctest.Serve(t, authv1.Role_ROLE_POLICY, svc, rpctest.Options{Tokens: tokens})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { _ = svc.Run(ctx) }() // Run returns when the test ends
	gateway, err := policyv1.NewPolicyServiceClient(s.Gateway()).WatchRevision(ctx, new(policyv1.WatchRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	person, err := policyv1.NewPolicyServiceClient(s.Person(t, "viewer")).WatchRevision(ctx, new(policyv1.WatchRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	first, err := gateway.Recv()
	if err != nil || first.GetRevision().GetId() == "" {
		t.Fatalf("the first message is %v, %v", first, err)
	}
	write(t, dir, "policy.yaml", denyDocument)
	for _, stream := range []policyv1.PolicyService_WatchRevisionClient{gateway, person} {
		for next := first; next.GetRevision().GetId() == first.GetRevision().GetId(); {
			if next, err = stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
