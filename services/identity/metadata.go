package identity

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
)

const (
	// metadataLife is the age at which the metadata of an issuer are fetched again. metadataMaxAge is the age up to which
	// the metadata are used if they can't be fetched again.
	metadataLife   = 10 * time.Minute
	metadataMaxAge = 24 * time.Hour
	// metadataPause is the minimum time between a failed fetch and the next one. Without a pause, callers without a
	// credential could make the service send many requests.
	metadataPause   = 5 * time.Second
	metadataTimeout = 4 * time.Second
)

// metadataCache fetches the metadata of issuers. The zero value is an empty cache. It is safe for concurrent use.
type metadataCache struct {
	group singleflight.Group

	mu   sync.Mutex
	last map[issuerkeys.Source]fetchedMetadata
}

// fetchedMetadata contains the results of fetching the metadata of an issuer.
type fetchedMetadata struct {
	// metadata is the result of the last successful fetch. fetched is the time at which this fetch ended. It is zero if no
	// fetch has succeeded.
	metadata issuerkeys.Metadata
	fetched  time.Time
	// err is the error of the last fetch, or nil if this fetch has succeeded. tried is the time at which this fetch ended.
	err   error
	tried time.Time
}

// result returns the cached metadata, or the error of the last fetch. If mustFetch is true, the caller must fetch the
// metadata first.
func (f *fetchedMetadata) result(now time.Time) (m issuerkeys.Metadata, mustFetch bool, err error) {
	isUsable := !f.fetched.IsZero() && now.Sub(f.fetched) < metadataMaxAge
	switch {
	case isUsable && now.Sub(f.fetched) < metadataLife:
		return f.metadata, false, nil
	case f.err == nil || now.Sub(f.tried) >= metadataPause:
		return m, true, nil
	case isUsable:
		return f.metadata, false, nil
	default:
		return m, false, f.err
	}
}

// get returns the metadata of an issuer. Concurrent calls share one fetch.
func (c *metadataCache) get(ctx context.Context, of issuerkeys.Source) (issuerkeys.Metadata, error) {
	c.mu.Lock()
	last := c.last[of]
	c.mu.Unlock()
	if m, mustFetch, err := last.result(time.Now()); !mustFetch {
		return m, err
	}
	fetched := c.group.DoChan(sourceDigest(of), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), metadataTimeout)
		defer cancel()
		metadata, err := issuerkeys.FetchMetadata(ctx, of)
		c.mu.Lock()
		defer c.mu.Unlock()
		now, next := time.Now(), c.last[of]
		if next.err, next.tried = err, now; err == nil {
			next.metadata, next.fetched = metadata, now
		}
		if c.last == nil {
			c.last = make(map[issuerkeys.Source]fetchedMetadata)
		}
		c.last[of] = next
		m, _, err := next.result(now)
		return m, err
	})
	select {
	case <-ctx.Done():
		return issuerkeys.Metadata{}, ctx.Err()
	case r := <-fetched:
		metadata, _ := r.Val.(issuerkeys.Metadata)
		return metadata, r.Err
	}
}
