# Reads in one go what the role must know about the gateway's node and prints it as YAML. Changes nothing.
# Argument: seconds for which the server certificate must still be valid.
remaining=$1
tls=/etc/haproxy/tls

yes_no() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
installed() { dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }
signed_by_ca() { openssl verify -CAfile $tls/ca.crt -partial_chain $tls/server.crt; }
key_fits() {
  [ "$(openssl x509 -in $tls/server.crt -noout -pubkey)" = "$(openssl pkey -in $tls/server.key -pubout)" ]
}
same_bundle() { cat $tls/server.crt $tls/server.key | cmp -s - $tls/gateway.pem; }
mode() { stat --format='%a %U' "$1" 2>/dev/null; }

alternative_names=$(openssl x509 -in $tls/server.crt -noout -ext subjectAltName 2>/dev/null | sed -n 2p)

cat <<YAML
haproxy: $(yes_no installed haproxy)
cryptography: $(yes_no installed python3-cryptography)
certificate: $(yes_no openssl x509 -in $tls/server.crt -noout -checkend "$remaining")
certificate_signed: $(yes_no signed_by_ca)
certificate_key: $(yes_no key_fits)
certificate_bundle: $(yes_no same_bundle)
certificate_names: "$(echo "$alternative_names" | sed 's/^ *//')"
key_modes: "$(mode $tls/ca.key), $(mode $tls/server.key), $(mode $tls/gateway.pem)"
keys: $(yes_no test -r /etc/haproxy/api-keys.map)
state: "$(systemctl is-active haproxy 2>/dev/null)"
enabled: "$(systemctl is-enabled haproxy 2>/dev/null)"
ca: |
$(sed 's/^/  /' $tls/ca.crt 2>/dev/null)
YAML
