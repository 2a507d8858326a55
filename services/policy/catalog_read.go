package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
)

// ListServers implements policyv1.CatalogServiceServer.
func (c catalogServer) ListServers(ctx context.Context, req *policyv1.ListServersRequest) (*policyv1.ListServersResponse, error) {
	if err := checkMayRead(ctx); err != nil {
		return nil, toStatus(err)
	}
	servers := c.active.Load().catalog.servers
	resp := new(policyv1.ListServersResponse)
	size := cmp.Or(int(req.GetPageSize()), defaultPageSize)
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		switch {
		case name <= req.GetPageToken():
		case len(resp.GetServers()) == size:
			resp.NextPageToken = resp.GetServers()[size-1].GetName()
			return resp, nil
		default:
			resp.Servers = append(resp.Servers, packServer(servers[name], c.settings(name)))
		}
	}
	return resp, nil
}

// GetServer implements policyv1.CatalogServiceServer.
func (c catalogServer) GetServer(ctx context.Context, req *policyv1.GetServerRequest) (*policyv1.GetServerResponse, error) {
	server, err := c.readableServer(ctx, req.GetServer())
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.GetServerResponse{Server: packServer(server, c.settings(server.Name))}, nil
}

// ListTools implements policyv1.CatalogServiceServer. It uses the same slots as [Service.FilterTools], because
// searching all definitions takes as long as filtering a list of tools.
func (c catalogServer) ListTools(ctx context.Context, req *policyv1.ListToolsRequest) (*policyv1.ListToolsResponse, error) {
	if err := checkMayRead(ctx); err != nil {
		return nil, toStatus(err)
	}
	done, err := c.listSlots.Acquire(ctx, callerOwner(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	servers := c.active.Load().catalog.servers
	afterServer, afterTool, _ := strings.Cut(req.GetPageToken(), "/")
	size := cmp.Or(int(req.GetPageSize()), defaultPageSize)
	resp := new(policyv1.ListToolsResponse)
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if req.GetServer() != "" && req.GetServer() != name {
			continue
		}
		shelf := &toolRenderer{server: servers[name], settings: c.settings(name), store: c.store}
		for _, tool := range slices.Sorted(maps.Keys(servers[name].Tools)) {
			if fits, err := shelf.matches(ctx, tool, req); err != nil || !fits {
				if err != nil {
					return nil, toStatus(err)
				}
				continue
			}
			resp.Total++
			switch {
			case name < afterServer, name == afterServer && tool <= afterTool:
			case len(resp.GetTools()) < size:
				entry, err := shelf.entry(ctx, tool)
				if err != nil {
					return nil, toStatus(err)
				}
				resp.Tools = append(resp.Tools, entry)
			case resp.GetNextPageToken() == "":
				last := resp.GetTools()[size-1]
				resp.NextPageToken = last.GetServer() + "/" + last.GetName()
			}
		}
	}
	if req.GetServer() != "" && servers[req.GetServer()] == nil {
		return nil, toStatus(unknownServer(req.GetServer()))
	}
	return resp, nil
}

func callerOwner(ctx context.Context) owner {
	caller := authn.CallerOf(ctx)
	return owner{caller.Tenant(), caller.Person.GetSubject()}
}

// GetTool implements policyv1.CatalogServiceServer.
func (c catalogServer) GetTool(ctx context.Context, req *policyv1.GetToolRequest) (*policyv1.GetToolResponse, error) {
	server, err := c.readableServer(ctx, req.GetServer())
	if err != nil {
		return nil, toStatus(err)
	}
	page, err := c.page(ctx, server, req.GetTool())
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.GetToolResponse{Tool: page}, nil
}

func (s *Service) page(ctx context.Context, server *catalog.Server, tool string) (*policyv1.CatalogTool, error) {
	shelf := &toolRenderer{server: server, settings: s.settings(server.Name), store: s.store, single: true}
	return shelf.page(ctx, tool)
}

// readableServer returns a server in the catalog. It returns an error if the caller may not read the catalog, or if
// there is no such server.
func (c catalogServer) readableServer(ctx context.Context, name string) (*catalog.Server, error) {
	if err := checkMayRead(ctx); err != nil {
		return nil, err
	}
	if server := c.active.Load().catalog.servers[name]; server != nil {
		return server, nil
	}
	return nil, unknownServer(name)
}

// checkMayRead returns [errOtherTenant] if the caller is a person of another tenant. Such a person must not see the
// catalog, because it also contains tools that a server lists only to callers of certain tenants.
func checkMayRead(ctx context.Context) error {
	if caller := authn.CallerOf(ctx); caller.Person != nil && caller.Tenant() != homeTenant {
		return errOtherTenant
	}
	return nil
}

// GetDefinition implements policyv1.CatalogServiceServer.
func (c catalogServer) GetDefinition(ctx context.Context, req *policyv1.GetDefinitionRequest) (*policyv1.GetDefinitionResponse, error) {
	server, err := c.readableServer(ctx, req.GetServer())
	if err != nil {
		return nil, toStatus(err)
	}
	tool := server.Tools[req.GetTool()]
	if tool == nil {
		return nil, toStatus(catalog.UnknownTool(req.GetTool()))
	}
	d := tool.FindDefinition(digestOf(req.GetDefinitionDigest()))
	if d == nil {
		return nil, toStatus(catalog.ErrUnknownDefinition)
	}
	text, err := c.store.Text(ctx, server.Name, d.Digest)
	if err != nil {
		return nil, toStatus(err)
	}
	return &policyv1.GetDefinitionResponse{Definition: packDefinition(d, c.settings(server.Name), d.Flag(req.GetTool(), server.NamesBySkeleton())), DefinitionJson: text}, nil
}
