package pki

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// scanInterval is the interval at which files are read again. Changes are found by comparing the contents, because that
// reliably detects writes, atomic renames, and the changed symbolic links of a Kubernetes Secret.
const scanInterval = 500 * time.Millisecond

// A Source contains the parsed contents of certificate files. While Run is running, the Source follows changes to the
// files. If the new contents can't be used, it keeps the old contents. A Source is safe for concurrent use.
type Source[T any] struct {
	files    []string
	load     func() (*T, error)
	notAfter func(*T) time.Time
	log      *slog.Logger
	current  atomic.Pointer[T]
	used     fingerprint

	mu       sync.Mutex
	onChange func(*T)
}

// fingerprint is a digest of the contents of the files.
type fingerprint [sha256.Size]byte

// Keys contains the certificate and key of a service, and the CA that the service trusts.
type Keys struct {
	*Identity
	Pool *x509.CertPool
}

// WatchRole returns a source for the files DIR/ca.pem, DIR/<role>.pem and DIR/<role>-key.pem. It returns an error if
// the current contents of the files can't be used.
func WatchRole(dir string, role authv1.Role, log *slog.Logger) (*Source[Keys], error) {
	name := authn.RoleName(role)
	files := []string{filepath.Join(dir, "ca.pem"), filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")}
	load := func() (*Keys, error) {
		id, pool, err := Load(dir, role)
		if err != nil {
			return nil, err
		}
		return &Keys{Identity: id, Pool: pool}, nil
	}
	return newSource(files, load, func(k *Keys) time.Time { return k.Cert.Leaf.NotAfter }, log)
}

// WatchPair returns a source for a certificate from any CA, with its chain, and for the certificate's key. Both files
// must be in PEM format. It returns an error if the current contents of the files can't be used.
func WatchPair(certFile, keyFile string, log *slog.Logger) (*Source[tls.Certificate], error) {
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("read %s and %s: %w", certFile, keyFile, err)
		}
		return &pair, nil
	}
	return newSource([]string{certFile, keyFile}, load, func(c *tls.Certificate) time.Time { return c.Leaf.NotAfter }, log)
}

func newSource[T any](files []string, load func() (*T, error), ends func(*T) time.Time, log *slog.Logger) (*Source[T], error) {
	if log == nil {
		return nil, errors.New("pki: a log is required")
	}
	s := &Source[T]{files: files, load: load, notAfter: ends, log: log, used: fingerprintOf(files)}
	first, err := s.read()
	if err != nil {
		return nil, err
	}
	s.current.Store(first)
	return s, nil
}

// Current returns the most recent usable contents of the files.
func (s *Source[T]) Current() *T { return s.current.Load() }

// OnChange makes Run call do after each change of the contents. If OnChange is called again, the new function replaces
// do.
func (s *Source[T]) OnChange(do func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onChange = do
}

// Run follows the files until ctx is done. It uses changed contents only after two consecutive scans have read the same
// contents, so that it does not combine old and new files.
func (s *Source[T]) Run(ctx context.Context) error {
	tick := time.NewTicker(scanInterval)
	defer tick.Stop()
	for last := s.used; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := fingerprintOf(s.files)
		if now == last && now != s.used {
			s.used = now
			s.replace(ctx)
		}
		last = now
	}
}

// replace reads the files again. If the new contents can be used, they replace the old contents.
func (s *Source[T]) replace(ctx context.Context) {
	next, err := s.read()
	if err != nil {
		s.log.ErrorContext(ctx, "certificates do not load, so the previous ones stay in use", "end", s.notAfter(s.Current()), "error", err)
		return
	}
	s.current.Store(next)
	s.log.InfoContext(ctx, "certificates changed", "file", s.files[len(s.files)-2], "end", s.notAfter(next))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.onChange != nil {
		s.onChange(next)
	}
}

func (s *Source[T]) read() (*T, error) {
	next, err := s.load()
	if err != nil {
		return nil, err
	}
	if end := s.notAfter(next); time.Now().After(end) {
		return nil, fmt.Errorf("the certificate in %s expired on %s", s.files[len(s.files)-2], end.Format(time.DateOnly))
	}
	return next, nil
}

func fingerprintOf(files []string) fingerprint {
	h := sha256.New()
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(h, "error: %v", err)
		}
		fmt.Fprintf(h, "%d:%s", len(raw), raw)
	}
	return fingerprint(h.Sum(nil))
}
