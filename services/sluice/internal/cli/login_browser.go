package cli

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/oauth2"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	callbackPath = "/callback"
	// signedInPage and failedPage are the pages that the browser shows after the sign-in.
	signedInPage = "<!doctype html><meta charset=utf-8><title>Sluice</title><p>You can close this page and return to the terminal."
	failedPage   = "<!doctype html><meta charset=utf-8><title>Sluice</title><p>The sign-in has failed. The terminal shows the reason."
)

// callback is the issuer's response to an authorization request (RFC 6749, section 4.1.2).
type callback struct {
	code string
	err  error
}

// authorizationRequest is an authorization request that a browser sends to an issuer (RFC 6749, section 4.1.1).
type authorizationRequest struct {
	// page is the URL to open. state is the parameter `state` in this URL.
	page, state string
	// issuer identifies the issuer. sendsIssuer is true if the issuer sends the parameter `iss` (RFC 9207).
	issuer      string
	sendsIssuer bool
}

// authorizationCode lets the person sign in with a browser, and returns the authorization code.
func (t *tool) authorizationCode(ctx context.Context, at *identityv1.SignIn, want *identityv1.AuthenticationRequest, noBrowser bool) (*identityv1.AuthorizationCode, error) {
	out := &identityv1.AuthorizationCode{CodeVerifier: oauth2.GenerateVerifier(), Nonce: rand.Text()}
	code, err := t.openPage(ctx, noBrowser, func(redirect string) (authorizationRequest, error) {
		out.RedirectUri = redirect
		if err := checkPage(at.GetAuthorizationEndpoint()); err != nil {
			return authorizationRequest{}, err
		}
		state := rand.Text()
		config := oauth2.Config{ClientID: at.GetClientId(), Scopes: at.GetScopes(), RedirectURL: redirect, Endpoint: oauth2.Endpoint{AuthURL: at.GetAuthorizationEndpoint()}}
		page := config.AuthCodeURL(state, append(authenticationParameters(want), oauth2.S256ChallengeOption(out.GetCodeVerifier()), oauth2.SetAuthURLParam("nonce", out.GetNonce()))...)
		return authorizationRequest{page: page, state: state, issuer: at.GetIssuerUrl(), sendsIssuer: at.GetSendsIssuer()}, nil
	})
	out.Code = code
	return out, err
}

// openPage opens the page of an authorization request and returns the authorization code. It calls begin with a
// redirect URI to get the request. The issuer redirects the browser to a loopback server (RFC 8252, section 7.3), which
// runs until it receives the issuer's response.
func (t *tool) openPage(ctx context.Context, noBrowser bool, begin func(redirect string) (authorizationRequest, error)) (code string, err error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen for the answer of the browser: %w", err)
	}
	request, err := begin("http://" + lis.Addr().String() + callbackPath)
	if err != nil {
		return "", errors.Join(err, lis.Close())
	}
	answers := make(chan callback, 1)
	server := &http.Server{Handler: callbackHandler(&request, answers), ReadHeaderTimeout: requestTimeout}
	go func() { _ = server.Serve(lis) }() // returns after Shutdown
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(ending) // first sends the page to the browser
	}()
	fmt.Fprintf(t.errOut, "Sign in on this page:\n%s\n", safetext.Line(request.page))
	if !noBrowser {
		openBrowser(ctx, request.page) // if this fails, the person opens the printed address
	}
	select {
	case <-ctx.Done():
		return "", errors.New("the sign-in was not finished: sign in again")
	case answer := <-answers:
		return answer.code, answer.err
	}
}

// callbackHandler returns a handler that sends the issuer's response to a channel. The handler refuses requests without
// the state of this sign-in, because any page in the browser can send such requests.
func callbackHandler(request *authorizationRequest, answers chan<- callback) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callbackPath, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(request.state)) != 1 {
			http.Error(w, "this is not the answer to the current sign-in", http.StatusBadRequest)
			return
		}
		answer := readCallback(request, query)
		page := signedInPage
		if answer.err != nil {
			page = failedPage
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		_, _ = io.WriteString(w, page)
		select {
		case answers <- answer:
		default: // an answer has already been received
		}
	})
	return mux
}

// readCallback reads an authorization response. It refuses responses from other issuers (RFC 9207, section 2.4).
func readCallback(request *authorizationRequest, query url.Values) callback {
	from := query.Get("iss")
	switch {
	case from != "" && from != request.issuer, from == "" && request.sendsIssuer:
		return callback{err: fmt.Errorf("the answer was sent by %q instead of the issuer %q: sign in again", from, request.issuer)}
	case query.Get("error") != "":
		return callback{err: fmt.Errorf("the issuer has refused the sign-in: %s %s", safetext.Line(query.Get("error")), safetext.Line(query.Get("error_description")))}
	case query.Get("code") == "":
		return callback{err: errors.New("the issuer's answer contains no code: sign in again")}
	}
	return callback{code: query.Get("code")}
}

// checkPage returns an error unless the text is an https URL or a loopback http URL. Otherwise an untrusted mesh could
// make this program open files and other programs.
func checkPage(text string) error {
	page, err := url.Parse(text)
	if err != nil || page.Host == "" || page.Scheme != "https" && (page.Scheme != "http" || !loopback.Host(page.Hostname())) {
		return fmt.Errorf("the issuer has no page for a sign-in, or its address is not https: %q", safetext.Line(text))
	}
	return nil
}

// openBrowser opens a page in the person's browser, if there is one.
func openBrowser(ctx context.Context, page string) {
	command := []string{"xdg-open", page}
	switch runtime.GOOS {
	case "darwin":
		command = []string{"open", page}
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", page}
	}
	started := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) //nolint:gosec // checkPage has checked the page
	if started.Start() == nil {
		go func() { _ = started.Wait() }() // the browser may stay open for a long time
	}
}
