package policy

import (
	"context"
	"errors"
	"fmt"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

var (
	errUnknownServer = errors.New("no gateway has reported this server")
	errPinningOff    = errors.New("the server's definitions are not pinned: its `pin` is off in the configuration")
)

func unknownServer(name string) error { return fmt.Errorf("%w: %q", errUnknownServer, name) }

// change replaces a server in the catalog with the result of the function fn. The caller must be an operator of the
// installation. When change returns, all replicas use the changed server.
func (s *Service) change(ctx context.Context, server string, fn func(before *catalog.Server, by catalog.ChangeInfo) (*catalog.Server, error)) (*catalog.Server, *activeSet, error) {
	caller := authn.CallerOf(ctx)
	if !caller.OperatesInstallation() {
		return nil, nil, errOtherTenant
	}
	after, version, err := s.store.Change(ctx, server, s.settings(server).Trusted, func(tx *sqlstore.Tx, before *catalog.Server, _ func(catalog.Digest) (string, error)) (store.Change, error) {
		if before.Tools == nil && before.Quarantine == nil {
			return store.Change{}, unknownServer(server)
		}
		next, err := fn(before, catalog.ChangeInfo{Operator: caller.Person.GetSubject(), Time: tx.Now})
		return store.Change{Server: next}, err
	})
	if err != nil {
		return nil, nil, err
	}
	s.publish(ctx, version, after)
	set := s.active.Load()
	return after, set, s.waitForReplicas(ctx, set)
}

// OverrideTool implements policyv1.CatalogServiceServer.
func (c catalogServer) OverrideTool(ctx context.Context, req *policyv1.OverrideToolRequest) (*policyv1.OverrideToolResponse, error) {
	after, set, err := c.change(ctx, req.GetServer(), func(before *catalog.Server, by catalog.ChangeInfo) (*catalog.Server, error) {
		var o *catalog.Override
		if in := req.GetOverride(); in != nil {
			o = &catalog.Override{
				Category: in.GetCategory(), Risk: in.GetRisk(), Tags: in.GetTags(), Reason: in.GetReason(), Author: by.Operator, Time: by.Time,
			}
		}
		return before.SetOverride(req.GetTool(), o, req.GetEtag())
	})
	if err != nil {
		return nil, toStatus(err)
	}
	page, err := c.page(ctx, after, req.GetTool())
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.OverrideToolResponse{Tool: page, PolicyRevision: set.Revision(), Activation: set.activation()}, nil
}

// AcceptPin implements policyv1.CatalogServiceServer.
func (c catalogServer) AcceptPin(ctx context.Context, req *policyv1.AcceptPinRequest) (*policyv1.AcceptPinResponse, error) {
	accepted := 0
	_, set, err := c.change(ctx, req.GetServer(), func(before *catalog.Server, by catalog.ChangeInfo) (next *catalog.Server, err error) {
		if c.settings(req.GetServer()).Mode == catalog.Off {
			return nil, errPinningOff
		}
		by.Reason = req.GetReason()
		if req.GetTool() == "" {
			next, accepted, err = before.AcceptAll(req.GetDefinitionDigest(), by)
			return next, err
		}
		accepted = 0
		next, err = before.Decide(req.GetTool(), digestOf(req.GetDefinitionDigest()), catalog.Accepted, by)
		if err == nil && next != before {
			accepted = 1
		}
		return next, err
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.AcceptPinResponse{Accepted: int32(accepted), PolicyRevision: set.Revision(), Activation: set.activation()}, nil
}

// RefusePin implements policyv1.CatalogServiceServer.
func (c catalogServer) RefusePin(ctx context.Context, req *policyv1.RefusePinRequest) (*policyv1.RefusePinResponse, error) {
	_, set, err := c.change(ctx, req.GetServer(), func(before *catalog.Server, by catalog.ChangeInfo) (*catalog.Server, error) {
		if c.settings(req.GetServer()).Mode == catalog.Off {
			return nil, errPinningOff
		}
		by.Reason = req.GetReason()
		return before.Decide(req.GetTool(), digestOf(req.GetDefinitionDigest()), catalog.Refused, by)
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.RefusePinResponse{PolicyRevision: set.Revision(), Activation: set.activation()}, nil
}

// SetQuarantine implements policyv1.CatalogServiceServer.
func (c catalogServer) SetQuarantine(ctx context.Context, req *policyv1.SetQuarantineRequest) (*policyv1.SetQuarantineResponse, error) {
	_, set, err := c.change(ctx, req.GetServer(), func(before *catalog.Server, by catalog.ChangeInfo) (*catalog.Server, error) {
		by.Reason = req.GetReason()
		return before.SetQuarantine(req.GetTool(), req.GetQuarantined(), by)
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.SetQuarantineResponse{PolicyRevision: set.Revision(), Activation: set.activation()}, nil
}
