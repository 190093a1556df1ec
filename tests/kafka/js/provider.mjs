// An OIDC provider: client credentials, access tokens as JWTs.
// node provider.mjs PORT SECONDS, where SECONDS is the lifetime of a token.
import { createServer } from 'node:http'
import Provider from 'oidc-provider'

const port = Number(process.argv[2])
const kafka = {
  audience: 'kafka',
  accessTokenFormat: 'jwt',
  accessTokenTTL: Number(process.argv[3]),
  scope: 'kafka',
  jwt: { sign: { alg: 'RS256' } },
}
const client = { grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ ...client, client_id: 'orders', client_secret: 'sesame' }],
  scopes: ['kafka'],
  features: {
    clientCredentials: { enabled: true },
    devInteractions: { enabled: false },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => 'urn:kafka',
      getResourceServerInfo: () => kafka,
      useGrantedResource: () => true,
    },
  },
})
createServer(provider.callback()).listen(port, '127.0.0.1')
