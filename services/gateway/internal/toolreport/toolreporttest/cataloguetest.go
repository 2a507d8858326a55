// Package toolreporttest provides a fake catalog for tests of packages that report tool lists.
package toolreporttest

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
)

// Report is a list that the fake catalog has received.
type Report struct {
	Head  *policyv1.ReportHead
	Tools []*policyv1.ToolDefinition
	To    *identityv1.Principal
}

// Catalog is a fake catalog that accepts every tool definition. It is safe for concurrent use.
type Catalog struct {
	policyv1.CatalogServiceClient

	mu      sync.Mutex
	err     error
	reports []Report
}

// Fail makes later reports fail with the given error. If the error is nil, later reports succeed.
func (c *Catalog) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Reports returns the received reports.
func (c *Catalog) Reports() []Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Report(nil), c.reports...)
}

// Digest returns the digest of a tool's definition.
func Digest(definition string) []byte {
	text, err := canonicaljson.Object(definition)
	if err != nil {
		return nil
	}
	sum := canonicaljson.Hash([]byte(text))
	return sum[:]
}

// ReportTools implements policyv1.CatalogServiceClient.
func (c *Catalog) ReportTools(ctx context.Context, _ ...grpc.CallOption) (grpc.ClientStreamingClient[policyv1.ReportToolsRequest, policyv1.ReportToolsResponse], error) {
	return &stream{of: c, report: Report{To: authn.PrincipalOf(ctx)}}, nil
}

type stream struct {
	grpc.ClientStream
	of     *Catalog
	report Report
}

func (s *stream) Send(part *policyv1.ReportToolsRequest) error {
	part = proto.CloneOf(part)
	if head := part.GetHead(); head != nil {
		s.report.Head = head
	} else {
		s.report.Tools = append(s.report.Tools, part.GetTool())
	}
	return nil
}

func (s *stream) CloseAndRecv() (*policyv1.ReportToolsResponse, error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.of.err != nil {
		return nil, s.of.err
	}
	s.of.reports = append(s.of.reports, s.report)
	resp := new(policyv1.ReportToolsResponse)
	for _, t := range s.report.Tools {
		resp.Tools = append(resp.Tools, &policyv1.ReportedTool{DefinitionDigest: Digest(t.GetDefinitionJson()), Pin: policyv1.PinState_PIN_STATE_ACCEPTED})
	}
	return resp, nil
}
