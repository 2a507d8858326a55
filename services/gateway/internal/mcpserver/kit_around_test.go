package mcpserver_test

import (
	"cmp"
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

type fakeJournal testGateway

func (b *fakeJournal) write(kind journal.Kind, r *journal.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := *r
	rec.Kind = kind
	b.records = append(b.records, rec)
}

func (b *fakeJournal) Intent(_ context.Context, r *journal.Record) error {
	b.write(journal.KindIntent, r)
	return nil
}

func (b *fakeJournal) Outcome(_ context.Context, r *journal.Record) error {
	b.write(journal.KindOutcome, r)
	return b.outcome
}

func (b *fakeJournal) Refusal(_ context.Context, r *journal.Record) error {
	b.write(journal.KindRefusal, r)
	return nil
}

func (b *fakeJournal) Claim(_ context.Context, r *journal.Record) error {
	b.write(journal.KindClaim, r)
	return nil
}

func (b *fakeJournal) Settled(_ context.Context, r *journal.Record) error {
	b.write(journal.KindSettled, r)
	return nil
}

func (b *fakeJournal) Passed(_ context.Context, r *journal.Record) error {
	b.write(journal.KindPassed, r)
	return nil
}

func (*fakeJournal) HMAC([]byte) string { return "x" }

// fakeApprovals is an approval service with one approval, which has the id a-1 and belongs to ana. The zero value has
// no approval.
type fakeApprovals struct {
	approvalv1.ApprovalServiceClient

	approval *approvalv1.Approval
	// updates are the approvals that a watch sends.
	updates   chan *approvalv1.Approval
	cancelled []string
	// votes are the requests with a vote of the agent's user.
	votes chan *approvalv1.RequestApprovalRequest
	// answerClaim answers a claim. If it is nil, claims fail with an error that does not show whether the claim was made.
	answerClaim func(*approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse
}

func (p *fakeApprovals) GetApproval(ctx context.Context, req *approvalv1.GetApprovalRequest, _ ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	if p.approval == nil || req.GetApprovalId() != p.approval.GetId() || authn.PrincipalOf(ctx).GetSubject() != "ana" {
		return nil, grpcstatus.Error(codes.NotFound, "APPROVAL_UNKNOWN")
	}
	return &approvalv1.GetApprovalResponse{Approval: p.approval, View: &approvalv1.View{Server: "files", Name: "pay", Params: "{}"}}, nil
}

func (p *fakeApprovals) RequestApproval(_ context.Context, req *approvalv1.RequestApprovalRequest, _ ...grpc.CallOption) (*approvalv1.RequestApprovalResponse, error) {
	if req.GetSelfVote() != nil {
		p.votes <- req
	}
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: p.approval, Confirm: req.GetCanConfirm()}}}, nil
}

func (p *fakeApprovals) ClaimApproval(_ context.Context, req *approvalv1.ClaimApprovalRequest, _ ...grpc.CallOption) (*approvalv1.ClaimApprovalResponse, error) {
	if p.answerClaim != nil {
		return p.answerClaim(req), nil
	}
	return nil, grpcstatus.Error(codes.Internal, "x")
}

func (*fakeApprovals) CompleteClaim(context.Context, *approvalv1.CompleteClaimRequest, ...grpc.CallOption) (*approvalv1.CompleteClaimResponse, error) {
	return nil, grpcstatus.Error(codes.Internal, "x")
}

func (*fakeApprovals) ReleaseClaim(context.Context, *approvalv1.ReleaseClaimRequest, ...grpc.CallOption) (*approvalv1.ReleaseClaimResponse, error) {
	return nil, grpcstatus.Error(codes.Internal, "x")
}

func (p *fakeApprovals) CancelApproval(_ context.Context, req *approvalv1.CancelApprovalRequest, _ ...grpc.CallOption) (*approvalv1.CancelApprovalResponse, error) {
	p.cancelled = append(p.cancelled, req.GetApprovalId())
	return new(approvalv1.CancelApprovalResponse), nil
}

func (p *fakeApprovals) WatchApprovals(ctx context.Context, _ *approvalv1.WatchApprovalsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[approvalv1.WatchApprovalsResponse], error) {
	return &approvalStream{ctx: ctx, updates: p.updates}, nil
}

type approvalStream struct {
	grpc.ClientStream

	ctx     context.Context //nolint:containedctx // the stream's context
	updates chan *approvalv1.Approval
}

func (s *approvalStream) Recv() (*approvalv1.WatchApprovalsResponse, error) {
	select {
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	case a := <-s.updates:
		return &approvalv1.WatchApprovalsResponse{Approval: a}, nil
	}
}

// server is the transport to the gateway's fake server, and conn is an upstream session.
type (
	server testGateway
	conn   testGateway
)

func (s *server) Kind() string                { return cmp.Or(s.kind, "test") }
func (*server) ToolsChanged() <-chan struct{} { return nil }
func (*server) Close() error                  { return nil }

func (s *server) Open(_ context.Context, who principal.Key, r upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if who.Tenant != "acme" && who.Subject != "system:catalogue" || who.Subject == "" {
		s.t.Errorf("a session was opened for %+v", who)
	}
	if who.Subject == "system:catalogue" && s.answerDiscovery != nil {
		a, err := s.answerDiscovery(r)
		return (*discoveryConn)(s), a, err
	}
	s.mu.Lock()
	s.opened = append(s.opened, r)
	s.mu.Unlock()
	a, err := s.open(r)
	if err != nil {
		return nil, upstream.Answer{}, err
	}
	return (*conn)(s), a, nil
}

func (c *conn) Request(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
	return c.request(ctx, r, events)
}

func (c *conn) Notify(_ context.Context, r upstream.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = append(c.notified, r)
	return c.notify
}

func (c *conn) Listen(ctx context.Context, to upstream.Listener) error {
	if c.listen == nil {
		return upstream.ErrNoStream
	}
	return c.listen(ctx, to)
}

func (c *conn) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

// discoveryConn is the upstream session in which the gateway discovers the server.
type discoveryConn testGateway

func (c *discoveryConn) Request(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	return c.answerDiscovery(r)
}

func (*discoveryConn) Notify(context.Context, upstream.Request) error { return nil }

func (*discoveryConn) Listen(context.Context, upstream.Listener) error { return upstream.ErrNoStream }

func (*discoveryConn) Close(context.Context) error { return nil }

func answer(r upstream.Request, result string) upstream.Answer {
	return raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"result":` + result + `}`)
}

func raw(message string) upstream.Answer {
	a, err := jsonrpc.ReadAnswer([]byte(message), jsonrpc.AnswerLimits())
	if err != nil {
		panic(err)
	}
	return upstream.Answer{Message: a, Status: 200}
}
