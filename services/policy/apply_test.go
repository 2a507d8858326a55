package policy_test

import (
	"database/sql"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network" //nolint:depguard // simulates network failures, only in tests
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/policy"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

const rolePolicy = authv1.Role_ROLE_POLICY

// runOnPostgres runs a statement in a PostgreSQL database.
func runOnPostgres(t *testing.T, source, statement string) {
	t.Helper()
	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // the statement reports errors
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// stored returns a copy of opts with which the service keeps its policies in its store.
func stored(opts options) options {
	opts.stored = true
	return opts
}

func singleDocument(text string) []*policyv1.Document {
	return []*policyv1.Document{{Path: "p.yaml", Text: text}}
}

func (f *stopFixture) apply(text, reason string) *policyv1.ApplyDocumentsResponse {
	f.t.Helper()
	resp, err := f.operator.ApplyDocuments(f.t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(text), Comment: reason})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

func (f *stopFixture) wantEffect(want policyv1.Effect) {
	f.t.Helper()
	if d := f.decision("default", "ana", "coder"); d.GetEffect() != want {
		f.t.Errorf("the decision is %v, want %v", d, want)
	}
}

func (f *stopFixture) revisions(size int32, token string) *policyv1.ListRevisionsResponse {
	f.t.Helper()
	resp, err := f.operator.ListRevisions(f.t.Context(), &policyv1.ListRevisionsRequest{PageSize: size, PageToken: token})
	if err != nil {
		f.t.Fatal(err)
	}
	return resp
}

func TestApplyDocuments_ReplacesTheActiveDocuments(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	first := f.apply(allowDocument, "begin")
	f.wantEffect(allow)
	second := f.apply(denyDocument, "it was too much")
	f.wantEffect(deny)
	if first.GetUnchanged() || len(first.GetDocumentsId()) != 64 || first.GetDocumentsId() == second.GetDocumentsId() || first.GetPolicyRevision() == second.GetPolicyRevision() {
		t.Errorf("%v, %v", first, second)
	}
	again := f.apply(denyDocument, "again")
	if !again.GetUnchanged() || again.GetActivation() != second.GetActivation() || again.GetDocumentsId() != second.GetDocumentsId() {
		t.Errorf("the active documents again: %v, want %v", again, second)
	}
	back := f.apply(allowDocument, "back")
	f.wantEffect(allow)
	if back.GetDocumentsId() != first.GetDocumentsId() || back.GetPolicyRevision() != first.GetPolicyRevision() || back.GetActivation() <= second.GetActivation() || second.GetActivation() <= first.GetActivation() {
		t.Errorf("%v, %v, %v", first, second, back)
	}

	active, err := f.operator.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	rev := active.GetRevision()
	if err != nil || rev.GetNumber() != 3 || rev.GetAuthor() != "operator" || rev.GetComment() != "back" || !rev.GetActive() || !rev.GetStored() || rev.GetDocumentsId() != back.GetDocumentsId() {
		t.Errorf("%v: %v", rev, err)
	}
	page := f.revisions(2, "")
	rest := f.revisions(2, page.GetNextPageToken())
	all := slices.Concat(page.GetRevisions(), rest.GetRevisions())
	var got []string
	for _, r := range all {
		got = append(got, r.GetDocumentsId()+" "+r.GetComment())
	}
	want := []string{back.GetDocumentsId() + " back", second.GetDocumentsId() + " it was too much", first.GetDocumentsId() + " begin"}
	if diff := cmp.Diff(want, got); diff != "" || len(page.GetRevisions()) != 2 || rest.GetNextPageToken() != "" {
		t.Fatalf("(-want +listed):\n%s", diff)
	}
	if diff := cmp.Diff(rev, all[0], protocmp.Transform()); diff != "" || all[1].GetActive() || all[1].GetActivated() == nil {
		t.Errorf("%v (-active +listed):\n%s", all[1], diff)
	}
	old, err := f.operator.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: second.GetDocumentsId()[:8]})
	if diff := cmp.Diff(singleDocument(denyDocument), old.GetDocuments(), protocmp.Transform()); diff != "" || err != nil || old.GetRevision().GetActive() {
		t.Errorf("%v, %v (-applied +stored):\n%s", old.GetRevision(), err, diff)
	}
	for _, id := range []string{rev.GetId(), rev.GetId()[:8], rev.GetDocumentsId()} {
		if same, err := f.operator.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: id}); err != nil || !cmp.Equal(active, same, protocmp.Transform()) {
			t.Errorf("the active revision as %s: %v, %v", id, same, err)
		}
	}
	_, err = f.operator.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: strings.Repeat("0", 64)})
	rpctest.WantStatus(t, err, codes.NotFound, "REVISION_UNKNOWN")
	_, err = f.operator.ListRevisions(t.Context(), &policyv1.ListRevisionsRequest{PageToken: "x"})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
}

// No documents have been applied yet. Every call is refused, with a message that says what to do.
func TestApplyDocuments_CallsAreRefusedBeforeTheFirstOnes(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	d := f.decision("default", "ana", "coder")
	if d.GetEffect() != deny || d.GetCode() != commonv1.Code_CODE_DENIED_BY_RULE || !strings.Contains(d.GetMessage(), "sluice policy apply") {
		t.Errorf("%v", d)
	}
	access, err := f.gateway.CheckServer(authn.OnBehalfOf(t.Context(), ana()), &policyv1.CheckServerRequest{Server: "demo", Methods: []string{"resources/read"}})
	if err != nil || access.GetCouldAllow() || access.GetMethods() != nil {
		t.Errorf("%v: %v", access, err)
	}
	_, err = f.operator.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "POLICY_NONE_ACTIVE")
	if list := f.revisions(0, ""); list.GetRevisions() != nil {
		t.Errorf("%v", list)
	}
	f.apply(allowDocument, "begin")
	f.wantEffect(allow)
}

func TestApplyDocuments_IsRefusedWhenAnotherRevisionIsActive(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	apply := func(text, expected string) error {
		_, err := f.operator.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(text), ExpectedRevision: expected, Comment: "change"})
		return err
	}
	rpctest.WantStatus(t, apply(allowDocument, strings.Repeat("a", 64)), codes.Aborted, "REVISION_CHANGED")
	if err := apply(allowDocument, policy.NoDocuments); err != nil {
		t.Errorf("no documents are expected: %v", err)
	}
	rpctest.WantStatus(t, apply(denyDocument, policy.NoDocuments), codes.Aborted, "REVISION_CHANGED")
	first := f.apply(allowDocument, "the first one")
	if err := apply(denyDocument, first.GetDocumentsId()); err != nil {
		t.Errorf("the active documents are expected: %v", err)
	}
	err := apply(allowDocument, first.GetDocumentsId())
	rpctest.WantStatus(t, err, codes.Aborted, "REVISION_CHANGED")
	if err == nil || !strings.Contains(err.Error(), "applied by operator at ") || !strings.Contains(err.Error(), ": change.") {
		t.Errorf("the error does not say what is active: %v", err)
	}
	f.wantEffect(deny)
	if err := apply(denyDocument, first.GetDocumentsId()); err != nil { // for example a repeated request
		t.Errorf("the active documents again: %v", err)
	}
	active, err := f.operator.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	if err := apply(allowDocument, active.GetRevision().GetId()); err != nil {
		t.Errorf("the active revision is expected: %v", err)
	}
	f.wantEffect(allow)
}

func TestApplyDocuments_RefusesDocumentsThatDoNotLoad(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	f.apply(allowDocument, "begin")
	for text, place := range map[string]string{
		invalidDocument: "p.yaml:3:24",
		denyDocument + "tests:\n  - {call: {tool: read, server: demo}, want: {action: allow}}\n": "p.yaml:",
	} {
		_, err := f.operator.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(text)})
		rpctest.WantStatus(t, err, codes.InvalidArgument, "POLICY_INVALID")
		if err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("the error does not contain %s: %v", place, err)
		}
	}
	f.wantEffect(allow)
	if n := len(f.revisions(0, "").GetRevisions()); n != 1 {
		t.Errorf("%d revisions are stored", n)
	}
}

func TestApplyDocuments_OnlyOperatorsOfTheInstallationApply(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	req := &policyv1.ApplyDocumentsRequest{Documents: singleDocument(allowDocument)}
	_, err := f.acme.ApplyDocuments(t.Context(), req)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	_, err = policyv1.NewPolicyServiceClient(f.Person(t, "viewer")).ApplyDocuments(t.Context(), req)
	rpctest.WantStatus(t, err, codes.PermissionDenied, "CALLER_REFUSED")
	_, err = f.acme.ListRevisions(t.Context(), new(policyv1.ListRevisionsRequest))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	if list := f.revisions(0, ""); list.GetRevisions() != nil {
		t.Errorf("%v", list)
	}
}

// The service restarts. The applied documents are still active. After that, an emergency stop stays active when other
// documents are applied.
func TestApplyDocuments_RevisionsSurviveRestarts(t *testing.T) {
	t.Parallel()
	opts := stored(options{data: t.TempDir(), tokens: append(rpctest.Records(), otherTenantTokens()...)})
	svc, tokens := build(t, opts)
	s := rpctest.Serve(t, rolePolicy, svc, rpctest.Options{Tokens: tokens})
	f := &stopFixture{t: t, gateway: policyv1.NewPolicyServiceClient(s.Gateway()), operator: policyv1.NewPolicyServiceClient(s.Person(t, "operator"))}
	f.apply(denyDocument, "first")
	applied := f.apply(allowDocument, "second")
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	f = newStopFixture(t, opts)
	f.wantEffect(allow)
	active, err := f.operator.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	if rev := active.GetRevision(); err != nil || rev.GetId() != applied.GetPolicyRevision() || rev.GetComment() != "second" || rev.GetNumber() != 2 {
		t.Errorf("%v: %v", rev, err)
	}
	f.stop(f.operator, &policyv1.StopSelector{Agent: "coder"})
	f.apply(allowDocument+"# changed\n", "third")
	f.wantStopped(true, "default", "ana", "coder")
}

// The documents in the store are damaged. After a restart, every call is refused until other documents are applied.
func TestApplyDocuments_DamagedDocumentsRefuseEveryCall(t *testing.T) {
	t.Parallel()
	opts := stored(options{data: t.TempDir(), tokens: append(rpctest.Records(), otherTenantTokens()...)})
	svc, tokens := build(t, opts)
	s := rpctest.Serve(t, rolePolicy, svc, rpctest.Options{Tokens: tokens})
	f := &stopFixture{t: t, operator: policyv1.NewPolicyServiceClient(s.Person(t, "operator"))}
	id := f.apply(allowDocument, "first").GetDocumentsId()
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, opts, "UPDATE policy_documents SET documents = x'00'")
	f = newStopFixture(t, opts)
	if d := f.decision("default", "ana", "coder"); d.GetEffect() != deny || !strings.Contains(d.GetMessage(), id[:16]+" does not load") || !strings.Contains(d.GetMessage(), "sluice policy apply") {
		t.Errorf("%v", d)
	}
	stream, err := f.operator.WatchRevision(t.Context(), new(policyv1.WatchRevisionRequest))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || len(resp.GetRevision().GetRejected()) != 1 || !strings.Contains(resp.GetRevision().GetRejected()[0].GetMessage(), "damaged") {
		t.Errorf("%v: %v", resp, err)
	}
	if again := f.apply(allowDocument, "second"); again.GetUnchanged() || again.GetDocumentsId() != id {
		t.Errorf("the same documents again: %v", again)
	}
	f.wantEffect(allow)
	if resp, err := f.operator.GetRevision(t.Context(), &policyv1.GetRevisionRequest{Revision: id}); err != nil || resp.GetDocuments()[0].GetText() != allowDocument {
		t.Errorf("%v: %v", resp, err)
	}
}

// All servers have `mode: observe`, so calls that a rule denies are executed. Nevertheless, every call is refused while
// no documents have been applied or the applied documents are damaged, because then there is no policy to observe.
func TestApplyDocuments_ObservedServersRefuseCallsWithoutAPolicy(t *testing.T) {
	t.Parallel()
	opts := stored(options{data: t.TempDir(), observe: engine.Observe{All: time.Now().Add(time.Hour)}})
	svc, tokens := build(t, opts)
	s := rpctest.Serve(t, rolePolicy, svc, rpctest.Options{Tokens: tokens})
	f := &stopFixture{
		t: t, operator: policyv1.NewPolicyServiceClient(s.Person(t, "operator")), gateway: policyv1.NewPolicyServiceClient(s.Gateway()),
	}
	f.wantEffect(deny)
	f.apply(denyDocument, "watch only")
	f.wantEffect(allow) // the policy denies the call, and is only observed
	if err := svc.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, opts, "UPDATE policy_documents SET documents = x'00'")
	newStopFixture(t, opts).wantEffect(deny)
}

// A gateway has a lease, which allows it to use older decisions, and acknowledges the change immediately. Nevertheless,
// ApplyDocuments responds only after decisions that were not cached have become too old to be used.
func TestApplyDocuments_RespondsWhenNoOlderDecisionIsValid(t *testing.T) {
	t.Parallel()
	lib := newCatalogFixture(t, stored(options{}))
	operator := policyv1.NewPolicyServiceClient(lib.Person(t, "operator"))
	time.Sleep(time.Second) // after a start, the service waits for leases of the previous process
	gateway := lib.openLeases()
	gateway.request(0)
	first := gateway.receive()
	done, begin := make(chan error, 1), time.Now()
	go func() {
		_, err := operator.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(allowDocument)})
		done <- err
	}()
	if change := gateway.receive(); change.GetEpoch() == first.GetEpoch() || change.GetRevision().GetId() == first.GetRevision().GetId() {
		t.Errorf("the documents begin no epoch: %v, %v", first, change)
	} else {
		gateway.request(change.GetNumber())
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the documents were acknowledged after %v", took)
	}
}

// Two replicas use one database. When one replica acknowledges documents that a client applied to it, the other replica
// already uses these documents.
func TestApplyDocuments_IsInForceAtEveryReplicaWhenAcknowledged(t *testing.T) {
	t.Parallel()
	opts := stored(options{source: sqlstoretest.Postgres(t)})
	one, two := newStopFixture(t, opts), newStopFixture(t, opts)
	for range 3 {
		allowed := one.apply(allowDocument, "open")
		two.wantEffect(allow)
		if d := two.decision("default", "ana", "coder"); d.GetPolicyRevision() != allowed.GetPolicyRevision() {
			t.Errorf("%v was decided by a revision that differs from that of %v", d, allowed)
		}
		two.apply(denyDocument, "close")
		one.wantEffect(deny)
	}
	if n := len(one.revisions(0, "").GetRevisions()); n != 6 {
		t.Errorf("%d revisions are stored", n)
	}
}

// In this test, a replica does not read the store regularly. A call requires a revision that another replica has
// activated. The replica then reads the store, even if the revision has the same documents as an earlier activation.
func TestDecideCall_UsesNoStoredRevisionOlderThanRequired(t *testing.T) {
	t.Parallel()
	opts := stored(options{source: sqlstoretest.Postgres(t), tokens: append(rpctest.Records(), otherTenantTokens()...)})
	one := newStopFixture(t, opts)
	first := one.apply(allowDocument, "open").GetActivation()
	svc, tokens := build(t, opts) // at the first revision
	s := rpctest.Serve(t, rolePolicy, svc, rpctest.Options{Tokens: tokens})
	gateway, operator := policyv1.NewPolicyServiceClient(s.Gateway()), policyv1.NewPolicyServiceClient(s.Person(t, "operator"))
	decide := func(least string) (policyv1.Effect, error) {
		resp, err := gateway.DecideCall(authn.OnBehalfOf(t.Context(), ana()), &policyv1.DecideCallRequest{Call: call("read"), MinRevision: least})
		return resp.GetDecision().GetEffect(), err
	}
	second := one.apply(denyDocument, "close").GetActivation()
	if effect, err := decide(first); err != nil || effect != allow {
		t.Errorf("the first revision is required: %v, %v", effect, err)
	}
	if effect, err := decide(second); err != nil || effect != deny {
		t.Errorf("the second revision is required: %v, %v", effect, err)
	}
	third := one.apply(allowDocument, "open again").GetActivation()
	if effect, err := decide(third); err != nil || effect != allow {
		t.Errorf("the third revision is required: %v, %v", effect, err)
	}
	active, err := operator.GetRevision(t.Context(), new(policyv1.GetRevisionRequest))
	if err != nil || active.GetRevision().GetNumber() != 3 {
		t.Errorf("%v: %v", active.GetRevision(), err)
	}
	_, rest, _ := strings.Cut(third, "-")
	_, err = decide("szzzzzzzzzz-" + rest)
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "POLICY_TOO_OLD")
}

func TestDiffRevisions_ComparesStoredRevisions(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, stored(options{}))
	first := f.apply(denyDocument, "closed").GetDocumentsId()
	second := f.apply(allowDocument, "open").GetDocumentsId()
	diff := func(req *policyv1.DiffRevisionsRequest) (opened, total int64) {
		t.Helper()
		resp, err := diffRevisions(t, f.operator, req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetTotals().GetOpened(), resp.GetTotals().GetTotal()
	}
	if opened, total := diff(&policyv1.DiffRevisionsRequest{OldRevision: first[:8], NewRevision: second}); opened == 0 || total == 0 {
		t.Errorf("from the first to the second: %d of %d open", opened, total)
	}
	if opened, total := diff(&policyv1.DiffRevisionsRequest{NewRevision: first}); opened != 0 || total == 0 {
		t.Errorf("from the active one to the first: %d of %d open", opened, total)
	}
	if opened, _ := diff(&policyv1.DiffRevisionsRequest{OldRevision: first, Documents: singleDocument(allowDocument)}); opened == 0 {
		t.Error("from the first to documents: nothing opens")
	}
	for _, tt := range []struct {
		req    *policyv1.DiffRevisionsRequest
		code   codes.Code
		reason string
	}{
		{new(policyv1.DiffRevisionsRequest), codes.InvalidArgument, "DOCUMENTS_REQUIRED"},
		{&policyv1.DiffRevisionsRequest{NewRevision: first, Documents: singleDocument(allowDocument)}, codes.InvalidArgument, "DOCUMENTS_REQUIRED"},
		{&policyv1.DiffRevisionsRequest{NewRevision: strings.Repeat("0", 64)}, codes.NotFound, "REVISION_UNKNOWN"},
		{&policyv1.DiffRevisionsRequest{OldRevision: "00000000", NewRevision: first}, codes.NotFound, "REVISION_UNKNOWN"},
	} {
		_, err := diffRevisions(t, f.operator, tt.req)
		rpctest.WantStatus(t, err, tt.code, tt.reason)
	}
}

// The store loses the newest revision, for example because a backup was restored. The service does not use the older
// revision that is now in the store. When the state that the service last read becomes too old, it refuses all calls.
func TestApplyDocuments_NoOlderRevisionIsUsedWhenTheStoreWentBack(t *testing.T) {
	t.Parallel()
	opts := stored(options{source: sqlstoretest.Postgres(t), maxStoreAge: 3 * time.Second})
	f := newStopFixture(t, opts)
	f.apply(allowDocument, "open")
	f.apply(denyDocument, "close")
	runOnPostgres(t, opts.source, "DELETE FROM policy_activations WHERE number = 2")
	for deadline := time.Now().Add(20 * time.Second); ; {
		resp, err := f.gateway.DecideCall(authn.OnBehalfOf(t.Context(), ana()), &policyv1.DecideCallRequest{Call: call("read")})
		if err != nil {
			rpctest.WantStatus(t, err, codes.Unavailable, "CATALOGUE_STORE_AWAY")
			break
		}
		if resp.GetDecision().GetEffect() != deny || time.Now().After(deadline) {
			t.Fatalf("a call is decided as %v", resp.GetDecision())
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, err := f.operator.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(allowDocument + "# new\n")})
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "REVISIONS_LOST")
	restarted := newStopFixture(t, opts)
	restarted.wantEffect(allow)
}

// The store is unavailable. The service uses the last revision for a limited time, and then refuses every call.
// Meanwhile, no documents can be applied, and no other service can start with this store.
func TestApplyDocuments_LastRevisionDecidesForALimitedTimeWithoutTheStore(t *testing.T) {
	t.Parallel()
	server := sqlstoretest.Start(t)
	proxy := network.Start(t, server.Addr())
	opts := stored(options{source: server.Through(proxy.Addr, server.Database(t)), maxStoreAge: 4 * time.Second})
	f := newStopFixture(t, opts)
	f.apply(allowDocument, "open")
	proxy.Refuse(t)
	away := time.Now()
	f.wantEffect(allow)
	_, err := f.operator.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: singleDocument(denyDocument)})
	rpctest.WantStatus(t, err, codes.Unavailable, "CATALOGUE_STORE_AWAY")
	decide := func() error {
		_, err := f.gateway.DecideCall(authn.OnBehalfOf(t.Context(), ana()), &policyv1.DecideCallRequest{Call: call("read")})
		return err
	}
	eventually.Holds(t, "calls are refused", func() bool { return decide() != nil })
	rpctest.WantStatus(t, decide(), codes.Unavailable, "CATALOGUE_STORE_AWAY")
	if after := time.Since(away); after < 3*time.Second {
		t.Errorf("calls are refused after %v", after)
	}
	_, err = policy.New(t.Context(), policy.Config{
		Stored: true, SessionCap: 10, People: holdersOf(records()), Decide: time.Minute, Execute: time.Minute, TestsWithin: time.Minute, Source: opts.source,
	}, policy.Deps{Tokens: new(authn.Tokens), Signer: signer(t), Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, sqlstore.ErrUnavailable) {
		t.Errorf("a service starts without its store: %v", err)
	}
	proxy.EndFault(t)
	eventually.Holds(t, "calls are decided again", func() bool { return decide() == nil })
	f.wantEffect(allow)
}
