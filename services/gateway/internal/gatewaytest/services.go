package gatewaytest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// errNoPolicy is the error that a request to the policy service returns if the service is meant to fail.
var errNoPolicy = errors.New("policy does not answer")

// Policy is a fake policy service. It hides the tools whose names begin with "secret". A test may change the fields
// only while the gateway handles no message, or within [Policy.Change].
type Policy struct {
	policyv1.PolicyServiceClient

	// Revision is the active revision. If it is empty, the gateway caches nothing.
	Revision string
	// Access is the response to CheckServer for every server, unless AccessOf is set. If Access is nil, CheckServer
	// fails. AccessOf may be nil. If it is not, it returns the response for one server.
	Access   *policyv1.CheckServerResponse
	AccessOf func(server string) *policyv1.CheckServerResponse
	// DeniedNotifications are notifications that MCP defines and the policy denies. AllowedMethods are methods that MCP
	// does not define and the policy allows.
	DeniedNotifications, AllowedMethods []string
	// Decision is the decision on every call, unless Decide is set. If Decision is nil, DecideCall fails. Decide may be
	// nil. If it is not, it returns the decision on one call.
	Decision *policyv1.Decision
	Decide   func(*policyv1.Call) *policyv1.Decision
	// Filter answers FilterTools.
	Filter func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error)
	// HidesName reports whether the policy hides the prompt or resource with the given name. If HidesName is nil,
	// FilterNames fails.
	HidesName func(name string) bool
	// BeforeNames may be nil. If it is not, it is called before FilterNames responds.
	BeforeNames func(ctx context.Context)

	t       testing.TB
	mu      sync.Mutex
	decided []Decided
	checked []string
	names   []*policyv1.FilterNamesRequest
}

// Decided is a call that the fake policy service has evaluated.
type Decided struct {
	Call      *policyv1.Call
	Principal *identityv1.Principal
}

// NewPolicy returns a policy service that allows every call, but none of the MCP methods that a rule must name.
func NewPolicy(t testing.TB) *Policy {
	return &Policy{
		t:        t,
		Access:   &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true},
		Decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW},
		Filter:   FilterSecrets,
	}
}

// FilterSecrets hides the tools whose names begin with "secret".
func FilterSecrets(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
	resp := new(policyv1.FilterToolsResponse)
	for _, tool := range r.GetTools() {
		resp.Tools = append(resp.Tools, &policyv1.ToolVisibility{Name: tool.GetName(), Visible: !strings.HasPrefix(tool.GetName(), "secret")})
	}
	return resp, nil
}

// Change calls a function while the policy service handles no request.
func (p *Policy) Change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// Allow sets the MCP methods that the policy allows.
func (p *Policy) Allow(methods ...string) { p.Change(func() { p.Access.Methods = methods }) }

// Decided returns the calls that the policy service has evaluated.
func (p *Policy) Decided() []Decided {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.decided)
}

// Checked returns the servers for which CheckServer was called.
func (p *Policy) Checked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.checked)
}

// NameRequests returns the FilterNames requests that the fake service has received.
func (p *Policy) NameRequests() []*policyv1.FilterNamesRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.names)
}

// Forget removes the record of evaluated calls. Benchmarks call it to release memory.
func (p *Policy) Forget() { p.Change(func() { p.decided = p.decided[:0] }) }

// DecideCall implements policyv1.PolicyServiceClient.
func (p *Policy) DecideCall(ctx context.Context, r *policyv1.DecideCallRequest, _ ...grpc.CallOption) (*policyv1.DecideCallResponse, error) {
	if err := p.validate(r); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided = append(p.decided, Decided{r.GetCall(), authn.PrincipalOf(ctx)})
	decision := p.Decision
	if p.Decide != nil {
		decision = p.Decide(r.GetCall())
	}
	if decision == nil {
		return nil, errNoPolicy
	}
	return &policyv1.DecideCallResponse{Decision: decision}, nil
}

// FilterTools implements policyv1.PolicyServiceClient.
func (p *Policy) FilterTools(_ context.Context, r *policyv1.FilterToolsRequest, _ ...grpc.CallOption) (*policyv1.FilterToolsResponse, error) {
	if err := p.validate(r); err != nil {
		return nil, err
	}
	p.mu.Lock()
	filter := p.Filter
	p.mu.Unlock()
	return filter(r)
}

// FilterNames implements policyv1.PolicyServiceClient.
func (p *Policy) FilterNames(ctx context.Context, r *policyv1.FilterNamesRequest, _ ...grpc.CallOption) (*policyv1.FilterNamesResponse, error) {
	if err := p.validate(r); err != nil {
		return nil, err
	}
	if p.BeforeNames != nil {
		p.BeforeNames(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.names = append(p.names, r)
	if p.HidesName == nil {
		return nil, errNoPolicy
	}
	resp := new(policyv1.FilterNamesResponse)
	for _, name := range r.GetNames() {
		resp.Visible = append(resp.Visible, !p.HidesName(name))
	}
	return resp, nil
}

// CheckServer implements policyv1.PolicyServiceClient.
func (p *Policy) CheckServer(_ context.Context, r *policyv1.CheckServerRequest, _ ...grpc.CallOption) (*policyv1.CheckServerResponse, error) {
	if err := p.validate(r); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checked = append(p.checked, r.GetServer())
	access := p.Access
	if p.AccessOf != nil {
		access = p.AccessOf(r.GetServer())
	}
	if access == nil {
		return nil, errNoPolicy
	}
	resp := proto.CloneOf(access)
	for _, method := range r.GetMethods() {
		if slices.Contains(mcpmethod.Notifications(), method) && !slices.Contains(p.DeniedNotifications, method) || slices.Contains(p.AllowedMethods, method) {
			resp.Methods = append(resp.Methods, method)
		}
	}
	return resp, nil
}

// validate checks that a request satisfies the constraints in the proto file, as the real policy service does. It does
// nothing in benchmarks, because the real gateway does not spend time on this check.
func (p *Policy) validate(r proto.Message) error {
	if _, isBenchmark := p.t.(*testing.B); isBenchmark {
		return nil
	}
	if err := protovalidate.Validate(r); err != nil {
		p.t.Errorf("a request breaks the contract of the policy service: %T: %v", r, err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// Journal is a fake journal that stores the records in memory.
type Journal struct {
	// Errors maps a kind of record to the error that writing such a record returns. The record is stored even if there
	// is an error.
	Errors map[journal.Kind]error
	// BeforeIntent may be nil. If it is not, it is called before an intent is stored.
	BeforeIntent func(*journal.Record)

	mu      sync.Mutex
	records []journal.Record
}

// Records returns the records of the given kind.
func (j *Journal) Records(kind journal.Kind) []journal.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.records), func(r journal.Record) bool { return r.Kind != kind })
}

// Forget removes all records. Benchmarks call it to release memory.
func (j *Journal) Forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records = j.records[:0]
}

// Refusals returns the codes of the recorded refusals.
func (j *Journal) Refusals() (codes []string) {
	for _, r := range j.Records(journal.KindRefusal) {
		codes = append(codes, r.Code)
	}
	return codes
}

func (j *Journal) write(kind journal.Kind, r *journal.Record) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	rec := *r
	rec.Kind = kind
	j.records = append(j.records, rec)
	return j.Errors[kind]
}

// Intent implements attempt.Journal.
func (j *Journal) Intent(_ context.Context, r *journal.Record) error {
	if j.BeforeIntent != nil {
		j.BeforeIntent(r)
	}
	return j.write(journal.KindIntent, r)
}

// Outcome implements attempt.Journal.
func (j *Journal) Outcome(_ context.Context, r *journal.Record) error {
	return j.write(journal.KindOutcome, r)
}

// Refusal implements attempt.Journal.
func (j *Journal) Refusal(_ context.Context, r *journal.Record) error {
	return j.write(journal.KindRefusal, r)
}

// Claim implements attempt.Journal.
func (j *Journal) Claim(_ context.Context, r *journal.Record) error {
	return j.write(journal.KindClaim, r)
}

// Settled implements attempt.Journal.
func (j *Journal) Settled(_ context.Context, r *journal.Record) error {
	return j.write(journal.KindSettled, r)
}

// Passed implements attempt.Journal.
func (j *Journal) Passed(_ context.Context, r *journal.Record) error {
	return j.write(journal.KindPassed, r)
}

// HMAC implements attempt.Journal.
func (*Journal) HMAC(b []byte) string { return "hmac of " + string(b) }
