package visibility_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// filter is a policy service that evaluates tools and names by their prefix. Each of its first responses has a
// different policy revision. The field flips is the number of these responses.
type filter struct {
	policyv1.PolicyServiceClient

	flips, asked int
	away         bool
}

func (f *filter) revision() string {
	if f.asked++; f.asked <= f.flips {
		return strings.Repeat("x", f.asked)
	}
	return "r"
}

func (f *filter) FilterTools(_ context.Context, req *policyv1.FilterToolsRequest, _ ...grpc.CallOption) (*policyv1.FilterToolsResponse, error) {
	if f.away {
		return nil, errAway
	}
	out := &policyv1.FilterToolsResponse{PolicyRevision: f.revision()}
	for _, t := range req.GetTools() {
		v := &policyv1.ToolVisibility{Name: t.GetName(), Visible: true}
		switch kind, _, _ := strings.Cut(t.GetName(), "-"); kind {
		case "hidden":
			v.Visible, v.Code, v.Rule = false, commonv1.Code_CODE_TOOL_UNKNOWN, new(policyv1.RuleRef)
		case "unknown":
			v.Visible, v.Code = false, commonv1.Code_CODE_TOOL_UNKNOWN
		case "changed":
			v.Visible, v.Code = false, commonv1.Code_CODE_TOOL_CHANGED
		case "asks":
			v.Code = commonv1.Code_CODE_APPROVAL_REQUIRED
		}
		out.Tools = append(out.Tools, v)
	}
	return out, nil
}

func (f *filter) FilterNames(_ context.Context, req *policyv1.FilterNamesRequest, _ ...grpc.CallOption) (*policyv1.FilterNamesResponse, error) {
	if f.away {
		return nil, errAway
	}
	out := &policyv1.FilterNamesResponse{PolicyRevision: f.revision()}
	for _, name := range req.GetNames() {
		out.Visible = append(out.Visible, !strings.HasPrefix(name, "hidden"))
	}
	return out, nil
}

func caller() visibility.Caller {
	return visibility.Caller{Principal: ana(), Owner: principal.Of(ana()), Server: "files"}
}

func newFilter(tb testing.TB, f *filter) *visibility.Visibility {
	tb.Helper()
	v, err := newVisibility(f, func() string { return "r" })
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func listOf(tb testing.TB, names ...string) *jsonrpc.Answer {
	tb.Helper()
	tools := make([]string, 0, len(names))
	for _, name := range names {
		tools = append(tools, `{"name":"`+name+`"}`)
	}
	a, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"tools":[`+strings.Join(tools, ",")+`]}}`), jsonrpc.AnswerLimits())
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// A server's tool list contains repeated, long, reserved, hidden and changed tools. The test checks which tools a
// caller sees, and which digests a session stores.
func TestTools_ShowsWhatPolicyShowsOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 129)
	list := listOf(t, "a", "asks-b", "hidden-c", "changed-d", "changed-e", "twice", "twice", long, mcp.ToolApprovalWait)
	known := &toolreport.Response{Digests: map[string][]byte{"a": {1}, "asks-b": {2}, "hidden-c": {3}, "changed-d": {4}, "twice": {5}}}
	got, err := newFilter(t, new(filter)).Tools(t.Context(), caller(), list, known)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"a": true, "asks-b": true, "hidden-c": false, "changed-d": false, "changed-e": false, "twice": false}
	if !maps.Equal(got.Visible, want) || !got.NeedsApproval || !got.Unaccepted || got.Revision != "r" || !got.Hides(jsonrpc.Tool{Name: long}) {
		t.Errorf("the caller sees %+v", got)
	}
	digests := got.Digests(known.Digests)
	if len(digests) != 4 || digests["a"][0] != 1 || digests["changed-d"][0] != 4 || len(digests["changed-e"]) != 32 {
		t.Errorf("the session remembers %v", digests)
	}
}

// TestTools_UnknownToolIsUnaccepted checks that a tool that a rule hides is not treated as a tool whose definition is
// unknown.
func TestTools_UnknownToolIsUnaccepted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"hidden-a": false, "unknown-a": true, "changed-a": true, "a": false} {
		got, err := newFilter(t, new(filter)).Tools(t.Context(), caller(), listOf(t, name), new(toolreport.Response))
		if err != nil || got.Unaccepted != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestTools_AllPartsNeedOneRevision checks that a list is refused if the policy revision changes between the requests
// for its parts, or if the policy service is unavailable.
func TestTools_AllPartsNeedOneRevision(t *testing.T) {
	t.Parallel()
	names := make([]string, 0, 600)
	for i := range 600 {
		names = append(names, "t"+strings.Repeat("x", i%100)+string(rune('a'+i%26))+strings.Repeat("y", i/100))
	}
	list := listOf(t, names...)
	for want, f := range map[error]*filter{nil: {}, visibility.ErrPolicy: {flips: 1}} {
		if _, err := newFilter(t, f).Tools(t.Context(), caller(), list, new(toolreport.Response)); !errors.Is(err, want) || f.asked < 2 {
			t.Errorf("after %d requests: %v, want %v", f.asked, err, want)
		}
		if _, err := newFilter(t, f).Names(t.Context(), caller(), "prompts/list", names); f.flips == 0 && err != nil {
			t.Error(err)
		}
	}
	if _, err := newFilter(t, &filter{away: true}).Tools(t.Context(), caller(), list, new(toolreport.Response)); !errors.Is(err, visibility.ErrPolicy) {
		t.Errorf("without policy: %v", err)
	}
}

// TestNames_HidesNamesThatNoRequestCanUse checks that empty and long names are hidden without a request to the policy
// service.
func TestNames_HidesNamesThatNoRequestCanUse(t *testing.T) {
	t.Parallel()
	f, long := new(filter), strings.Repeat("n", 4097)
	v := newFilter(t, f)
	got, err := v.Names(t.Context(), caller(), "prompts/list", []string{"a", "hidden-b", "", long, "a"})
	if err != nil || !maps.Equal(got, map[string]bool{"a": true, "hidden-b": false}) {
		t.Errorf("visible: %v, %v", got, err)
	}
	if _, err := v.Names(t.Context(), caller(), "prompts/list", []string{"", long}); err != nil || f.asked != 1 {
		t.Errorf("policy was asked %d times, %v", f.asked, err)
	}
	for name, want := range map[string]bool{"a": true, "hidden-b": false, "": false, long: false} {
		if v.MayNotify(t.Context(), caller(), "notifications/resources/updated", name) != want {
			t.Errorf("the caller may know of %.20q: %t", name, !want)
		}
	}
	if newFilter(t, &filter{away: true}).MayNotify(t.Context(), caller(), "notifications/resources/updated", "a") {
		t.Error("without policy the caller may know of a resource")
	}
}

// TestView_IsCachedForItsListAndRevision checks that the policy service filters a list only once for all callers that
// the policy cannot distinguish.
func TestView_IsCachedForItsListAndRevision(t *testing.T) {
	t.Parallel()
	f := new(filter)
	v := newFilter(t, f)
	found := func() *discovery.Result {
		return &discovery.Result{List: listOf(t, "a", "hidden-b"), Known: new(toolreport.Response)}
	}
	first, second := found(), found()
	session := caller()
	session.Session, session.Run = "s", "r"
	for i, tt := range []struct {
		c        visibility.Caller
		found    *discovery.Result
		revision string
		asked    int
	}{{caller(), first, "r", 1}, {caller(), first, "r", 1}, {session, first, "r", 1}, {caller(), second, "r", 2}, {caller(), second, "s", 3}} {
		got, err := v.View(t.Context(), tt.c, tt.found, tt.revision)
		if err != nil || !got.Visible["a"] || got.Visible["hidden-b"] || f.asked != tt.asked {
			t.Errorf("%d: %+v after %d requests, %v", i, got, f.asked, err)
		}
	}
}
