package identity

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

var errPageToken = errors.New("the page token is not one of this list: begin with the first page")

// listed is a connection and the account to which it belongs.
type listed struct {
	account
	*store.Connection
}

// ofNoPerson returns the connections of accounts that belong to no person, sorted by server. There is one for each
// server at which the mesh signs in.
func (c connections) ofNoPerson(ctx context.Context) (out []listed, err error) {
	servers := c.tokens.identities().Servers
	if len(servers) == 0 {
		return nil, nil
	}
	all, err := c.store.Connections(ctx)
	if err != nil {
		return nil, err
	}
	byServer := make(map[string]*store.Connection, len(all))
	for i := range all {
		byServer[all[i].Server] = &all[i]
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		at, found := account{store.Key{Server: name}, servers[name].ForEachPerson}, byServer[name]
		if found == nil {
			found = &store.Connection{Key: at.Key, LoginRequired: true}
		}
		c.addState(at, found, servers[name])
		out = append(out, listed{at, found})
	}
	return out, nil
}

// addState sets LoginRequired and Problem if the connection does not match the configuration of its server, or if the
// server has refused its access token.
func (c connections) addState(at account, of *store.Connection, server OAuthServer) {
	if of.LoginRequired {
		return
	}
	_, err := c.usableGrant(at, of, &server, server.URL)
	switch {
	case err != nil:
		of.LoginRequired, of.Problem = true, problemText(err)
	case of.IsRefused():
		of.LoginRequired, of.Problem = true, refusedProblem
	}
}

// ofPeople returns a page of people's connections. It omits connections that the caller may not see. last is the key
// after which the next page starts. It is the zero key on the last page.
func (c connections) ofPeople(ctx context.Context, after store.Key) (out []listed, last store.Key, err error) {
	caller := authn.CallerOf(ctx)
	tenant, person := caller.Tenant(), caller.Person.GetSubject()
	switch {
	case caller.OperatesInstallation():
		tenant, person = "", ""
	case isOperator(caller):
		person = ""
	}
	page, err := c.store.ConnectionsOfPeople(ctx, after, tenant, person, maxListed)
	if err != nil {
		return nil, store.Key{}, err
	}
	servers := c.tokens.identities().Servers
	for i := range page {
		of, known := servers[page[i].Server]
		if last = page[i].Key; known && of.ForEachPerson && len(page[i].Sealed) > 0 {
			at := account{Key: page[i].Key}
			c.addState(at, &page[i], of)
			out = append(out, listed{at, &page[i]})
		}
	}
	if len(page) < maxListed {
		last = store.Key{}
	}
	return out, last, nil
}

func isOperator(caller *authn.Caller) bool {
	return caller.Person.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

// countStates returns the number of connections in each state.
func (c connections) countStates(ctx context.Context) (map[string]int64, error) {
	all, err := c.ofNoPerson(ctx)
	if err != nil {
		return nil, err
	}
	states := make(map[string]int64)
	for _, one := range all {
		states[enum.Name(stateOf(one.Connection))]++
	}
	usable, loginRequired, err := c.store.CountConnectionsOfPeople(ctx)
	if err != nil {
		return nil, err
	}
	for state, n := range map[identityv1.ConnectionState]int64{
		identityv1.ConnectionState_CONNECTION_STATE_CONNECTED: usable, identityv1.ConnectionState_CONNECTION_STATE_LOGIN_REQUIRED: loginRequired,
	} {
		if n > 0 {
			states[enum.Name(state)] += n
		}
	}
	return states, nil
}

// ListConnections implements identityv1.ConnectionServiceServer.
func (c connections) ListConnections(ctx context.Context, req *identityv1.ListConnectionsRequest) (*identityv1.ListConnectionsResponse, error) {
	after, err := parsePage(req.GetPageToken())
	if err != nil {
		return nil, connectionStatus(err)
	}
	resp := new(identityv1.ListConnectionsResponse)
	if req.GetPageToken() == "" {
		all, err := c.ofNoPerson(ctx)
		if err != nil {
			return nil, connectionStatus(err)
		}
		for _, one := range all {
			packed := packConnection(one.account, one.Connection)
			if !authn.CallerOf(ctx).OperatesInstallation() {
				packed.ConnectedBy, packed.AccountName, packed.Problem = "", "", ""
			}
			resp.Connections = append(resp.Connections, packed)
		}
	}
	page, last, err := c.ofPeople(ctx, after)
	if err != nil {
		return nil, connectionStatus(err)
	}
	for _, one := range page {
		resp.Connections = append(resp.Connections, packConnection(one.account, one.Connection))
	}
	if last != (store.Key{}) {
		resp.NextPageToken = last.Server + " " + last.Tenant + " " + last.Person
	}
	return resp, nil
}

func parsePage(token string) (store.Key, error) {
	if token == "" {
		return store.Key{}, nil
	}
	parts := strings.SplitN(token, " ", 3)
	if len(parts) != 3 {
		return store.Key{}, errPageToken
	}
	return store.Key{Server: parts[0], Tenant: parts[1], Person: parts[2]}, nil
}

func stateOf(c *store.Connection) identityv1.ConnectionState {
	if c.LoginRequired {
		return identityv1.ConnectionState_CONNECTION_STATE_LOGIN_REQUIRED
	}
	return identityv1.ConnectionState_CONNECTION_STATE_CONNECTED
}

func packConnection(of account, c *store.Connection) *identityv1.Connection {
	out := &identityv1.Connection{
		Server: of.Server, State: stateOf(c), Issuer: c.Issuer, Scopes: strings.Fields(c.Scopes), Connected: packTime(c.Connected), ConnectedBy: c.ConnectedBy,
		Refreshed: packTime(c.Refreshed), Expires: packTime(c.Expires), HasRefreshToken: c.HasRefreshToken, Problem: c.Problem, ForDiscovery: of.forDiscovery, AccountName: c.AccountName,
	}
	if of.Person != "" {
		out.Person = &identityv1.Person{Tenant: of.Tenant, Subject: of.Person}
	}
	return out
}

// DeleteConnection implements identityv1.ConnectionServiceServer.
func (c connections) DeleteConnection(ctx context.Context, req *identityv1.DeleteConnectionRequest) (*identityv1.DeleteConnectionResponse, error) {
	key, err := c.deletable(ctx, req)
	if err == nil {
		err = c.store.Disconnect(ctx, key)
	}
	if err != nil {
		return nil, connectionStatus(err)
	}
	caller := authn.CallerOf(ctx)
	c.deps.Log.InfoContext(ctx, "a connection was deleted", "server", key.Server, "tenant", key.Tenant, "subject", key.Person, "by", caller.Person.GetSubject(), "by_tenant", caller.Tenant())
	return new(identityv1.DeleteConnectionResponse), nil
}

// deletable returns the key of the connection that a request deletes, if the caller may delete it. The request can also
// name a server that was removed from the configuration.
func (c connections) deletable(ctx context.Context, req *identityv1.DeleteConnectionRequest) (store.Key, error) {
	caller := authn.CallerOf(ctx)
	of := store.Key{Server: req.GetServer(), Tenant: req.GetPerson().GetTenant(), Person: req.GetPerson().GetSubject()}
	own := store.Key{Server: req.GetServer(), Tenant: caller.Tenant(), Person: caller.Person.GetSubject()}
	switch {
	case req.GetPerson() != nil && req.GetForDiscovery():
		return store.Key{}, errDiffers
	case req.GetPerson() == nil && !req.GetForDiscovery() && c.tokens.identities().Servers[req.GetServer()].ForEachPerson:
		return own, nil
	case req.GetPerson() == nil && !caller.OperatesInstallation():
		return store.Key{}, errConnectTenant
	case req.GetPerson() != nil && of != own && !caller.OperatesInstallation() && (!isOperator(caller) || of.Tenant != caller.Tenant()):
		return store.Key{}, errOthersAccount
	default:
		return of, nil
	}
}
