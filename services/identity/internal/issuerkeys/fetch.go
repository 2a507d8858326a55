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
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/issuer"
	"github.com/sluice-mesh/sluice/services/internal/loopback"
)

const (
	// fetchTimeout is the timeout of one fetch, with the issuer's metadata.
	fetchTimeout = 10 * time.Second
	// maxMetadata is the maximum size of an issuer's metadata, in bytes.
	maxMetadata = 256 << 10
)

// Source says where the keys of an issuer are.
type Source struct {
	// Issuer is the issuer's identifier, which is an https URL or an http URL on loopback.
	Issuer string
	// KeySet is the URL of the JWK Set. If it is empty, the issuer's metadata contains the URL.
	KeySet string
	// CA contains the certificate authorities of the issuer's TLS certificate in PEM. If it is empty, those of the system
	// are used.
	CA string
}

// metadataURLs returns the URLs of an issuer's metadata: OpenID Connect Discovery 1.0, section 4, and RFC 8414, section
// 3. RFC 8414 inserts its path between the host and the path of the issuer.
func metadataURLs(of *url.URL) []string {
	path := strings.TrimSuffix(of.Path, "/")
	root := of.Scheme + "://" + of.Host
	return []string{root + path + "/.well-known/openid-configuration", root + "/.well-known/oauth-authorization-server" + path}
}

// Fetch returns the keys of an issuer. Without [Source.KeySet] it reads the issuer's metadata first. The metadata must
// name the same issuer, otherwise they belong to another one (RFC 8414, section 3.3).
func Fetch(ctx context.Context, from Source) ([]*identityv1.IssuerKey, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	client, err := newClient(from.CA)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	at := from.KeySet
	if at == "" {
		if at, err = keySetURL(ctx, client, from.Issuer); err != nil {
			return nil, err
		}
	}
	if err := checkURL(at); err != nil {
		return nil, fmt.Errorf("the URL of the keys: %w", err)
	}
	raw, err := get(ctx, client, at, issuer.MaxKeySet)
	if err != nil {
		return nil, err
	}
	return issuer.ParseKeySet(raw)
}

func newClient(ca string) (*http.Client, error) {
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
	// A redirect could lead to keys that the issuer does not control.
	refuseRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: refuseRedirect}, nil
}

// keySetURL returns the URL of the keys in an issuer's metadata.
func keySetURL(ctx context.Context, client *http.Client, issuerURL string) (string, error) {
	of, err := url.Parse(issuerURL)
	if err != nil {
		return "", fmt.Errorf("the issuer is not a URL: %w", err)
	}
	var problems []error
	for _, at := range metadataURLs(of) {
		raw, err := get(ctx, client, at, maxMetadata)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		var metadata struct {
			Issuer  string `json:"issuer"`
			JWKSURI string `json:"jwks_uri"`
		}
		switch err := json.Unmarshal(raw, &metadata); {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: the metadata is not valid JSON: %w", at, err))
		case metadata.Issuer != issuerURL:
			problems = append(problems, fmt.Errorf("%s: the metadata is that of the issuer %q: write `issuer` exactly so", at, metadata.Issuer))
		case metadata.JWKSURI == "":
			problems = append(problems, fmt.Errorf("%s: the metadata has no jwks_uri", at))
		default:
			return metadata.JWKSURI, nil
		}
	}
	return "", errors.Join(problems...)
}

func checkURL(text string) error {
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
