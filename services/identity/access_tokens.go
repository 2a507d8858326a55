package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/store"
)

const (
	// refreshBefore is how long before its expiry an access token is refreshed. A token with a short lifetime is refreshed
	// when a quarter of its lifetime is left.
	refreshBefore = 30 * time.Second
	// minTokenAge is how old an access token must be before it is refreshed because the server has refused it. Without
	// this minimum, a server that refuses every token would cause one refresh for each call.
	minTokenAge = time.Minute
	// refreshLease is how long only one replica may refresh a connection. It is longer than refreshTimeout, so that two
	// replicas never use the same refresh token.
	refreshLease   = 30 * time.Second
	refreshTimeout = 10 * time.Second
	// refreshPause is the minimum time between a failed refresh and the next one.
	refreshPause = 5 * time.Second
	// leasePoll is the interval at which a replica reads a connection that another replica is refreshing.
	leasePoll = 100 * time.Millisecond
	// saveTimeout is how long a replica tries to store new tokens. saveRetry is the pause between two attempts.
	saveTimeout = refreshLease - refreshTimeout - time.Second
	saveRetry   = 500 * time.Millisecond
	// maxShownProblem is the maximum length of a stored error, in bytes.
	maxShownProblem = 1024
)

// GetAccessToken implements identityv1.ConnectionServiceServer.
func (c connections) GetAccessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest) (*identityv1.GetAccessTokenResponse, error) {
	if _, err := c.serverNamed(req.GetServer()); err != nil {
		return nil, connectionStatus(err)
	}
	// Concurrent calls share one refresh, which continues if the first of these calls ends.
	shared := c.refreshes.DoChan(req.GetServer()+"\x00"+req.GetUrl()+"\x00"+strconv.FormatInt(req.GetRefusedGeneration(), 10), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshLease+refreshTimeout)
		defer cancel()
		return c.accessToken(ctx, req)
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

// accessToken returns a valid access token. It waits while another replica is refreshing the token.
func (c connections) accessToken(ctx context.Context, req *identityv1.GetAccessTokenRequest) (*identityv1.GetAccessTokenResponse, error) {
	for {
		found, err := c.store.Connection(ctx, req.GetServer())
		if err != nil {
			return nil, loginIfUnknown(err)
		}
		granted, err := c.usableGrant(&found, req.GetUrl())
		if err != nil {
			return nil, err
		}
		if !c.needsRefresh(&found, req.GetRefusedGeneration(), time.Now()) {
			return packAccessToken(&found, granted), nil
		}
		refreshed, err := c.refresh(ctx, &found, granted)
		switch {
		case err == nil:
			granted, err = c.openGrant(refreshed)
			return packAccessToken(refreshed, granted), err
		case !errors.Is(err, errRefreshPending), time.Now().Before(found.Expires) && req.GetRefusedGeneration() != found.Generation:
			return orStillValid(&found, granted, req, err)
		}
		select {
		case <-ctx.Done():
			return orStillValid(&found, granted, req, err)
		case <-time.After(leasePoll):
		}
	}
}

func loginIfUnknown(err error) error {
	if errors.Is(err, store.ErrConnectionUnknown) {
		return fmt.Errorf("%w: %w", errLoginRequired, errors.New("no operator has connected it"))
	}
	return err
}

// usableGrant returns the grant of a connection, if its tokens may be sent to the given URL.
func (c connections) usableGrant(of *store.Connection, to string) (*grant, error) {
	switch {
	case of.LoginRequired && of.Problem != "":
		return nil, fmt.Errorf("%w: %s", errLoginRequired, of.Problem)
	case of.LoginRequired:
		return nil, fmt.Errorf("%w: its connection was deleted", errLoginRequired)
	}
	granted, err := c.openGrant(of)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errLoginRequired, err)
	case granted.Client.Server != to:
		return nil, fmt.Errorf("%w: it was connected at another URL", errLoginRequired)
	}
	return granted, nil
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
func orStillValid(of *store.Connection, granted *grant, req *identityv1.GetAccessTokenRequest, err error) (*identityv1.GetAccessTokenResponse, error) {
	if time.Now().Before(of.Expires) && req.GetRefusedGeneration() != of.Generation && !errors.Is(err, errLoginRequired) {
		return packAccessToken(of, granted), nil
	}
	return nil, err
}

func packAccessToken(of *store.Connection, granted *grant) *identityv1.GetAccessTokenResponse {
	resp := &identityv1.GetAccessTokenResponse{AccessToken: granted.AccessToken, Generation: of.Generation}
	if !of.Expires.IsZero() {
		resp.Expires = timestamppb.New(of.Expires)
	}
	return resp
}

// refresh replaces the tokens of a connection. It returns errRefreshPending if another replica is replacing them, or
// has replaced them since the connection was read.
//
// The lease is stored before the refresh token is used. If this process ends after that, the next replica tries the
// same refresh token once, after the lease has ended. The authorization server may refuse the token, because it was
// used before. Then an operator has to connect the server again.
func (c connections) refresh(ctx context.Context, of *store.Connection, granted *grant) (*store.Connection, error) {
	if granted.RefreshToken == "" {
		return nil, c.endConnection(ctx, of, "the access token has expired, and the authorization server has issued no refresh token")
	}
	now, begun, err := c.store.BeginRefresh(ctx, of.Server, of.Generation, c.replica, refreshLease)
	switch {
	case err != nil:
		return nil, loginIfUnknown(err)
	case !begun && now.Generation == of.Generation && now.Problem != "" && !now.LoginRequired:
		return nil, fmt.Errorf("%w: %s", errServerAway, now.Problem)
	case !begun:
		return nil, errRefreshPending
	}
	answer, err := c.requestRefresh(ctx, of.Server, granted)
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
	return c.saveRefresh(ctx, &next, &renewed)
}

// requestRefresh requests new tokens with the refresh token (RFC 6749, section 6). It sends only one request.
func (c connections) requestRefresh(ctx context.Context, name string, granted *grant) (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	ctx, end, err := c.oauthContext(ctx, name)
	if err != nil {
		return nil, err
	}
	defer end()
	options := append(granted.Client.resourceOption(), oauth2.SetAuthURLParam("grant_type", "refresh_token"), oauth2.SetAuthURLParam("refresh_token", granted.RefreshToken))
	answer, err := granted.Client.config("").Exchange(ctx, "", options...)
	if err != nil {
		return nil, tokenEndpointError(err, errLoginRequired)
	}
	return answer, checkTokenAnswer(answer)
}

// saveRefresh stores the new tokens before they are used. If the store is unavailable, saveRefresh tries again, because
// the old refresh token may no longer be valid.
func (c connections) saveRefresh(ctx context.Context, next *store.Connection, renewed *grant) (*store.Connection, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	for {
		stored, err := c.store.FinishRefresh(ctx, *next, c.replica, c.sealerOf(next.Server, renewed))
		switch {
		case err == nil:
			return &stored, nil
		case errors.Is(err, store.ErrConnectionChanged): // an operator has connected or disconnected the server meanwhile
			return nil, errRefreshPending
		}
		select {
		case <-ctx.Done():
			c.deps.Log.ErrorContext(ctx, "the new tokens of a server could not be stored, and are lost; if its authorization server does not accept the old refresh token, an operator has to connect the server again", "server", next.Server, "error", err)
			return nil, err
		case <-time.After(saveRetry):
		}
	}
}

// failRefresh records a failed refresh. If the authorization server has refused the refresh, the connection can't be
// used until an operator connects the server again.
func (c connections) failRefresh(ctx context.Context, of *store.Connection, why error) {
	ends := errors.Is(why, errLoginRequired)
	c.deps.Log.WarnContext(ctx, "the access token of a server could not be refreshed", "server", of.Server, "login_required", ends, "error", why)
	saving, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	if err := c.store.FailRefresh(saving, of.Server, of.Generation, c.replica, problemText(why), ends, refreshPause); err != nil && !errors.Is(err, store.ErrConnectionChanged) {
		c.deps.Log.WarnContext(ctx, "the failed refresh of a server could not be stored; the next refresh begins when its lease ends", "server", of.Server, "error", err)
	}
}

// endConnection records that an operator has to connect a server again, and returns an error that says so.
func (c connections) endConnection(ctx context.Context, of *store.Connection, why string) error {
	_, begun, err := c.store.BeginRefresh(ctx, of.Server, of.Generation, c.replica, refreshLease)
	if err != nil || !begun {
		return errors.Join(err, fmt.Errorf("%w: %s", errLoginRequired, why))
	}
	ended := fmt.Errorf("%w: %s", errLoginRequired, why)
	c.failRefresh(ctx, of, ended)
	return ended
}

// problemText returns the message of an error for operators, without the general beginning that many errors share.
func problemText(err error) string {
	text := withoutControls(strings.TrimPrefix(strings.TrimPrefix(err.Error(), errLoginRequired.Error()+": "), errServerAway.Error()+": "))
	return strings.ToValidUTF8(text[:min(len(text), maxShownProblem)], "")
}
