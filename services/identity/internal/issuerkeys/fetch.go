// Package issuerkeys fetches the public keys of issuers, and decides when to fetch them again.
package issuerkeys

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

// fetchTimeout limits how long it takes to fetch an issuer's metadata and keys.
const fetchTimeout = 10 * time.Second

// Source identifies where the keys of an issuer are.
type Source struct {
	// Issuer is the issuer's identifier, which is an https URL or an http URL on loopback.
	Issuer string
	// KeySet is the URL of the JWK Set. If it is empty, the issuer's metadata contains the URL.
	KeySet string
	// CA contains certificate authorities in PEM that verify the issuer's TLS certificate. If it is empty, the system's
	// certificate authorities are used.
	CA string
}

// Fetch returns the keys of an issuer. If [Source.KeySet] is empty, Fetch reads the issuer's metadata first. It returns
// an error if the metadata name a different issuer (RFC 8414, section 3.3).
func Fetch(ctx context.Context, from Source) ([]*identityv1.IssuerKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := NewClient(from.CA)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	at := from.KeySet
	if at == "" {
		err := fetchMetadata(ctx, client, from.Issuer, func(raw []byte) error {
			var metadata struct {
				JWKSURI string `json:"jwks_uri"`
			}
			err := json.Unmarshal(raw, &metadata)
			if at = metadata.JWKSURI; err == nil && at == "" {
				err = errors.New("it has no jwks_uri")
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if err := CheckURL(at); err != nil {
		return nil, fmt.Errorf("the URL of the keys: %w", err)
	}
	raw, err := get(ctx, client, at, issuer.MaxKeySet)
	if err != nil {
		return nil, err
	}
	return issuer.ParseKeySet(raw)
}

// NewClient returns a client for requests to an issuer. ca contains certificate authorities in PEM that verify the
// issuer's TLS certificate. If ca is empty, the system's certificate authorities are used. The client follows no
// redirects.
func NewClient(ca string) (*http.Client, error) {
	var cas *x509.CertPool
	if ca != "" {
		if cas = x509.NewCertPool(); !cas.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("the file of the issuer's certificate authorities (ca) contains no certificate")
		}
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		TLSClientConfig:       &tls.Config{RootCAs: cas, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   fetchTimeout,
		ResponseHeaderTimeout: fetchTimeout,
		ForceAttemptHTTP2:     true,
	}
	// A redirect could lead to keys that the issuer does not control, or send a client secret to another server.
	refuseRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuseRedirect}, nil
}

// CheckURL returns an error if a text is neither an https URL nor an http URL on loopback.
func CheckURL(text string) error {
	at, err := url.Parse(text)
	if err != nil || at.Host == "" || at.User != nil {
		return fmt.Errorf("%q is not a URL with a host", text)
	}
	if at.Scheme != "https" && (at.Scheme != "http" || !loopback.Host(at.Hostname())) {
		return fmt.Errorf("%q is not an https URL", text)
	}
	return nil
}

func get(ctx context.Context, client *http.Client, at string, most int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch the keys: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // the body was read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: the issuer has answered %s", at, resp.Status)
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if int64(len(raw)) > most {
		return nil, fmt.Errorf("%s: the answer has more than %d bytes", at, most)
	}
	return raw, nil
}
