package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
)

const (
	// refreshBefore is the remaining lifetime at which an access token is refreshed. A token with a short lifetime is
	// refreshed when a quarter of its lifetime is left.
	refreshBefore = 30 * time.Second
	// minTokenAge is how old an access token must be before it is refreshed because the server has refused it. Without
	// this minimum, a server that refuses every token would cause one refresh for each call.
	minTokenAge = time.Minute
	// refreshLease is how long a replica has the exclusive right to refresh a connection. refreshTimeout is how long after
	// the replica has asked for the lease the authorization server may answer. It is shorter than the lease, even if the
	// response of the store was late, so that two replicas never use the same refresh token.
	refreshLease   = 30 * time.Second
	refreshTimeout = 10 * time.Second
	// refreshPause is the minimum time between a failed refresh and the next one.
	refreshPause = 5 * time.Second
	// leasePoll is the interval at which a replica reads a connection that another replica is refreshing.
	leasePoll = 100 * time.Millisecond
	// saveTimeout is how long a replica tries to store new tokens. saveRetry is the pause between two attempts.
	saveTimeout = refreshLease - refreshTimeout - time.Second
	saveRetry   = 500 * time.Millisecond
	// closeTimeout is how long a shutdown waits for the refreshes in flight.
	closeTimeout = refreshTimeout + 2*time.Second
	// maxShownProblem is the maximum length of a stored error, in bytes.
	maxShownProblem = 1024
	// refusedProblem is shown to operators if the server has refused an access token that can't be replaced.
	refusedProblem = "the server refuses the access token, although the token has not expired: sign in with an account and scopes that the server accepts"
)

// GetAccessToken implements identityv1.ConnectionServiceServer.
func (c connections) GetAccessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest) (*identityv1.GetAccessTokenResponse, error) {
	at, err := c.requestedAccount(req)
	if err != nil {
		return nil, connectionStatus(err)
	}
	// Concurrent calls for one account share one refresh, which continues even if the first of these calls is cancelled.
	key := fmt.Sprintf("%q %q %q %t %q %d", at.Server, at.Tenant, at.Person, at.forDiscovery, req.GetUrl(), req.GetRefusedGeneration())
	shared := c.refreshes.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshLease+refreshTimeout)
		defer cancel()
		return c.accessToken(ctx, at, req)
	})
	select {
	case <-ctx.Done():
		return nil, connectionStatus(fmt.Errorf("%w: %w", errRefreshPending, ctx.Err()))
	case r := <-shared:
		if r.Err != nil {
			return nil, connectionStatus(r.Err)
		}
		resp, _ := r.Val.(*identityv1.GetAccessTokenResponse)
		return resp, nil
	}
}

// requestedAccount returns the account for which the gateway requests a token. It refuses a request that does not match
// the configuration. Otherwise, a gateway with a different configuration could use one account for all callers.
func (c connections) requestedAccount(req *identityv1.GetAccessTokenRequest) (account, error) {
	of, err := c.serverNamed(req.GetServer())
	if err != nil {
		return account{}, err
	}
	at := account{store.Key{Server: req.GetServer(), Tenant: req.GetPerson().GetTenant(), Person: req.GetPerson().GetSubject()}, req.GetForDiscovery()}
	isOfPerson := req.GetPerson() != nil
	switch {
	case isOfPerson && at.forDiscovery, of.ForEachPerson != (isOfPerson || at.forDiscovery):
		return account{}, errDiffers
	case isOfPerson && !c.deps.Tokens.HasSet():
		return account{}, errNotImported
	case isOfPerson && c.deps.Tokens.IsBlocked(&identityv1.Principal{Tenant: at.Tenant, Subject: at.Person}):
		return account{}, errIsBlocked
	default:
		return at, nil
	}
}

// accessToken returns a valid access token of an account. It waits while another replica refreshes the token.
func (c connections) accessToken(ctx context.Context, at account, req *identityv1.GetAccessTokenRequest) (*identityv1.GetAccessTokenResponse, error) {
	for {
		server, err := c.serverNamed(at.Server)
		if err != nil {
			return nil, err
		}
		found, err := c.store.Connection(ctx, at.Key)
		if err != nil {
			return nil, loginIfUnknown(err)
		}
		granted, err := c.usableGrant(at, &found, &server, req.GetUrl())
		if err != nil {
			return nil, err
		}
		if !c.needsRefresh(&found, req.GetRefusedGeneration(), time.Now()) {
			c.recordRefusal(ctx, &found, req)
			return packAccessToken(at, &found, granted), nil
		}
		refreshed, err := c.refresh(ctx, at, &found, granted)
		switch {
		case err == nil:
			granted, err = c.openGrant(at, refreshed)
			if err != nil {
				return nil, err
			}
			return packAccessToken(at, refreshed, granted), nil
		case !errors.Is(err, errRefreshPending), time.Now().Before(found.Expires) && req.GetRefusedGeneration() != found.Generation:
			return orStillValid(at, &found, granted, req, err)
		}
		select {
		case <-ctx.Done():
			return orStillValid(at, &found, granted, req, err)
		case <-time.After(leasePoll):
		}
	}
}

func loginIfUnknown(err error) error {
	if errors.Is(err, store.ErrConnectionUnknown) {
		return fmt.Errorf("%w: %w", errLoginRequired, errors.New("it was never connected"))
	}
	return err
}

// usableGrant returns the decrypted grant of a connection, with the client's current secret. It returns an error if the
// tokens may not be sent to the given URL, or if they were issued to an OAuth client other than the configured one.
func (c connections) usableGrant(at account, of *store.Connection, server *OAuthServer, to string) (*grant, error) {
	switch {
	case of.LoginRequired && of.Problem != "":
		return nil, fmt.Errorf("%w: %s", errLoginRequired, of.Problem)
	case of.LoginRequired:
		return nil, fmt.Errorf("%w: its connection was deleted", errLoginRequired)
	}
	granted, err := c.openGrant(at, of)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errLoginRequired, err)
	case granted.Client.Server != to:
		return nil, fmt.Errorf("%w: it was connected at another URL", errLoginRequired)
	}
	if err := server.update(&granted.Client); err != nil {
		return nil, fmt.Errorf("%w: %w", errLoginRequired, err)
	}
	return granted, nil
}

// recordRefusal records whether the server refuses the current access token. The caller has checked that a refused
// token can't be replaced, because it is new or because there is no refresh token. An operator sees the refusal until
// the server accepts the token or a new token is stored.
func (c connections) recordRefusal(ctx context.Context, of *store.Connection, req *identityv1.GetAccessTokenRequest) {
	isRefused, isAccepted := req.GetRefusedGeneration() == of.Generation, req.GetAcceptedGeneration() == of.Generation
	if isRefused == of.IsRefused() || !isRefused && !isAccepted {
		return
	}
	if isRefused {
		c.deps.Log.WarnContext(ctx, refusedProblem, "server", of.Server, "tenant", of.Tenant, "subject", of.Person, "refreshed", of.Refreshed, "expires", of.Expires)
	}
	if err := c.store.RecordRefusal(ctx, of.Key, of.Generation, isRefused); err != nil {
		c.deps.Log.WarnContext(ctx, "it could not be stored whether a server refuses its access token; sluice connections shows an old state", "server", of.Server, "tenant", of.Tenant, "subject", of.Person, "refused", isRefused, "error", err)
	}
}

// needsRefresh reports whether an access token expires soon, or was refused by the server.
func (c connections) needsRefresh(of *store.Connection, refused int64, now time.Time) bool {
	before := cmp.Or(c.cfg.RefreshBefore, min(refreshBefore, of.Expires.Sub(of.Refreshed)/4))
	switch {
	case !of.HasRefreshToken:
		return !of.Expires.IsZero() && !now.Before(of.Expires)
	case !of.Expires.IsZero() && of.Expires.Sub(now) < before:
		return true
	default:
		return refused == of.Generation && now.Sub(of.Refreshed) >= minTokenAge
	}
}

// orStillValid returns the access token of a connection whose refresh has failed, if the token has not expired and the
// server has not refused it.
func orStillValid(at account, of *store.Connection, granted *grant, req *identityv1.GetAccessTokenRequest, err error) (*identityv1.GetAccessTokenResponse, error) {
	if time.Now().Before(of.Expires) && req.GetRefusedGeneration() != of.Generation && !errors.Is(err, errLoginRequired) {
		return packAccessToken(at, of, granted), nil
	}
	return nil, err
}

// packAccessToken returns the response with the access token of a connection. The response names the account, so that the
// gateway can check that it is the requested one.
func packAccessToken(at account, of *store.Connection, granted *grant) *identityv1.GetAccessTokenResponse {
	resp := &identityv1.GetAccessTokenResponse{
		AccessToken: granted.AccessToken, Generation: of.Generation, ForDiscovery: at.forDiscovery, Connected: timestamppb.New(of.Connected),
	}
	if of.Person != "" {
		resp.Person = &identityv1.Person{Tenant: of.Tenant, Subject: of.Person}
	}
	if !of.Expires.IsZero() {
		resp.Expires, resp.ExpiresIn = timestamppb.New(of.Expires), durationpb.New(max(0, time.Until(of.Expires)))
	}
	return resp
}

// refresh replaces the tokens of a connection. It returns errRefreshPending if another replica is replacing the tokens,
// or has replaced them since the connection was read.
//
// The lease is stored before the refresh token is used. If this process ends after that, the next replica tries the
// same refresh token once when the lease has ended. The authorization server may refuse the token, because it was
// already used. In this case, the server has to be connected again.
func (c connections) refresh(ctx context.Context, at account, of *store.Connection, granted *grant) (*store.Connection, error) {
	if !c.refreshing.begin() {
		return nil, errClosing
	}
	defer c.refreshing.end()
	if granted.RefreshToken == "" {
		return nil, c.endConnection(ctx, of, "the access token has expired, and the authorization server has issued no refresh token")
	}
	asked := time.Now()
	now, begun, err := c.store.BeginRefresh(ctx, of.Key, of.Generation, c.replica, refreshLease)
	switch {
	case err != nil:
		return nil, loginIfUnknown(err)
	case !begun && now.Generation == of.Generation && now.Lease == "" && now.Problem != "" && !now.LoginRequired:
		return nil, fmt.Errorf("%w: %s", errRefreshFailed, now.Problem)
	case !begun:
		return nil, errRefreshPending
	case time.Since(asked) >= refreshTimeout:
		c.deps.Log.WarnContext(ctx, "the store has answered so late that the access token of a server is not refreshed before the lease ends", "server", of.Server, "tenant", of.Tenant, "subject", of.Person, "took", time.Since(asked), "lease", refreshLease)
		return nil, errRefreshPending
	}
	answer, err := c.requestRefresh(ctx, of.Server, granted, asked.Add(refreshTimeout))
	if err != nil {
		c.failRefresh(ctx, of, err)
		return nil, err
	}
	renewed := *granted
	renewed.AccessToken = answer.AccessToken
	if answer.RefreshToken != "" {
		renewed.RefreshToken = answer.RefreshToken
	}
	next := *of
	next.Expires, next.HasRefreshToken = answer.Expiry, true
	if _, isNamed := answer.Extra("scope").(string); isNamed {
		next.Scopes = grantedScopes(answer, &granted.Client)
	}
	return c.saveRefresh(ctx, at, &next, &renewed)
}

// requestRefresh requests new tokens with the refresh token (RFC 6749, section 6). It sends only one request, and waits
// for the response until the given time.
func (c connections) requestRefresh(ctx context.Context, name string, granted *grant, until time.Time) (*oauth2.Token, error) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	ctx, end, err := c.oauthContext(ctx, name)
	if err != nil {
		return nil, err
	}
	defer end()
	options := append(granted.Client.resourceOption(), oauth2.SetAuthURLParam("grant_type", "refresh_token"), oauth2.SetAuthURLParam("refresh_token", granted.RefreshToken))
	answer, err := granted.Client.config("").Exchange(ctx, "", options...)
	if err != nil {
		return nil, tokenEndpointError(err, granted.Client.refreshRefusal(err))
	}
	return answer, checkTokenAnswer(answer)
}

// saveRefresh stores the new tokens before they are used. saveRefresh tries again if the store is unavailable, because
// the old refresh token might already be invalid.
func (c connections) saveRefresh(ctx context.Context, at account, next *store.Connection, renewed *grant) (*store.Connection, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	for {
		stored, err := c.store.FinishRefresh(ctx, *next, c.replica, c.sealerOf(at, renewed))
		switch {
		case err == nil:
			return &stored, nil
		case errors.Is(err, store.ErrConnectionChanged): // the server was connected or disconnected in the meantime
			return nil, errRefreshPending
		}
		select {
		case <-ctx.Done():
			c.deps.Log.ErrorContext(ctx, "the new tokens of a server could not be stored, and are lost; if its authorization server does not accept the old refresh token, the server has to be connected again", "server", next.Server, "tenant", next.Tenant, "subject", next.Person, "error", err)
			return nil, err
		case <-time.After(saveRetry):
		}
	}
}

// failRefresh records a failed refresh. If the authorization server has refused the refresh token, no further refresh
// is attempted until the server is connected again.
func (c connections) failRefresh(ctx context.Context, of *store.Connection, why error) {
	ends := errors.Is(why, errLoginRequired)
	c.deps.Log.WarnContext(ctx, "the access token of a server could not be refreshed", "server", of.Server, "tenant", of.Tenant, "subject", of.Person, "login_required", ends, "error", why)
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	if err := c.store.FailRefresh(saving, of.Key, of.Generation, c.replica, problemText(why), ends, refreshPause); err != nil && !errors.Is(err, store.ErrConnectionChanged) {
		c.deps.Log.WarnContext(ctx, "the failed refresh of a server could not be stored; the next refresh begins when its lease ends", "server", of.Server, "tenant", of.Tenant, "subject", of.Person, "error", err)
	}
}

// endConnection records that a server has to be connected again.
func (c connections) endConnection(ctx context.Context, of *store.Connection, why string) error {
	_, begun, err := c.store.BeginRefresh(ctx, of.Key, of.Generation, c.replica, refreshLease)
	if err != nil || !begun {
		return errors.Join(err, fmt.Errorf("%w: %s", errLoginRequired, why))
	}
	ended := fmt.Errorf("%w: %s", errLoginRequired, why)
	c.failRefresh(ctx, of, ended)
	return ended
}

// problemText returns the message of an error for operators. It omits the prefixes of errLoginRequired and
// errServerAway.
func problemText(err error) string {
	text := err.Error()
	for _, class := range []error{errLoginRequired, errServerAway} {
		text = strings.TrimPrefix(text, class.Error()+": ")
	}
	text = withoutControls(text)
	return strings.ToValidUTF8(text[:min(len(text), maxShownProblem)], "")
}
